"""The service a Python user would write for the same work today: aiohttp, uvloop, PyTorch, safetensors. It
answers what `kvmat bench` asks for: GET /v1/model, POST /v1/materialize. Says its port on standard output.
"""

import argparse
import asyncio
import json
import pathlib

import safetensors.torch
import torch
import uvloop
from aiohttp import web

from gpu_stage import SglangStage, Shape, Stage


def load_stage(folder, device):
    """A checkpoint in the published form, as `kvmat make-model` writes it."""
    config = json.loads((folder / "config.json").read_text())
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    layers = config["num_hidden_layers"]
    shape = Shape(
        folder.name,
        layers,
        config["hidden_size"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        positions=config["max_position_embeddings"],
        theta=config["rope_parameters"]["rope_theta"],
        eps=config["rms_norm_eps"],
    )

    def stack(part):
        return torch.stack([tensors[f"layers.{i}.self_attn.{part}.weight"] for i in range(layers)]).to(device)

    return Stage(shape, torch.stack((stack("k_proj"), stack("v_proj"))), stack("k_norm"))


class Service:
    def __init__(self, stage, sglang):
        self.stage, self.sglang, self.shape = stage, sglang, stage.shape
        self.device = stage.weight.device

    async def model(self, _):
        shape = self.shape
        geometry = {"layers": shape.layers, "hidden": shape.hidden, "kv_heads": shape.kv_heads}
        geometry |= {"head_dim": shape.head_dim, "rotary_dim": shape.head_dim, "taps": 0}
        rope = {"positions": shape.positions}
        return web.json_response(
            {"name": shape.name, "ready": True, "dtype": "BF16", "geometry": geometry, "rope": rope}
        )

    async def materialize(self, request):
        tensors = safetensors.torch.load(await request.read())
        hidden, positions = tensors["hidden_states"].to(self.device), tensors["positions"].to(self.device)
        with torch.inference_mode():
            if self.sglang:
                self.sglang(hidden, positions)
                k, v = self.sglang.result()
            else:
                k, v = self.stage(hidden, positions)
            body = safetensors.torch.save({"k": k.cpu(), "v": v.cpu()})
        return web.Response(body=body, content_type="application/octet-stream")


async def serve(options):
    stage = load_stage(options.model, options.device)
    service = Service(stage, SglangStage(options.sglang, stage) if options.sglang else None)
    app = web.Application(client_max_size=1 << 30)
    app.add_routes([web.get("/v1/model", service.model), web.post("/v1/materialize", service.materialize)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=256)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sglang", metavar="PATH", help="compute with the helper of an installed SGLang")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
