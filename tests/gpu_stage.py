"""The stage as a PyTorch user would write it, its check in float64, and SGLang's helper where a path to an
installed one is given. Knows nothing of how it is timed or served."""

import dataclasses
import importlib.util
import pathlib
import types

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    hidden: int
    kv_heads: int = 8
    head_dim: int = 128
    positions: int = 40960
    theta: float = 1e6
    eps: float = 1e-6

    @property
    def outputs(self):
        return self.kv_heads * self.head_dim


class Stage(torch.nn.Module):
    """hidden [T, hidden] and positions [T] to K and V [layers, T, kv_heads, head_dim]."""

    def __init__(self, shape, weight, norm):
        """weight [2, layers, outputs, hidden] (K of all layers, then V); norm [layers, head_dim]."""
        super().__init__()
        self.shape = shape
        self.weight = torch.nn.Parameter(weight.reshape(-1, shape.hidden), requires_grad=False)
        self.norm = torch.nn.Parameter(norm.float()[:, None, :], requires_grad=False)
        steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=weight.device)
        inverse = 1.0 / torch.pow(torch.tensor(shape.theta, device=weight.device), steps / shape.head_dim)
        angles = torch.arange(shape.positions, dtype=torch.float32, device=weight.device)[:, None] * inverse
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def project(self, hidden):
        return F.linear(hidden, self.weight)

    def forward(self, hidden, positions):
        shape = self.shape
        kv = self.project(hidden).view(-1, 2, shape.layers, shape.kv_heads, shape.head_dim)
        k, v = kv[:, 0].float(), kv[:, 1]
        k = k * torch.rsqrt(k.square().mean(-1, keepdim=True) + shape.eps) * self.norm
        cos, sin = self.cos[positions][:, None, None], self.sin[positions][:, None, None]
        a, b = k.chunk(2, -1)
        k = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(hidden.dtype)
        return k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()


def random_stage(shape, device, seed):
    generator = torch.Generator(device).manual_seed(seed)
    like = {"device": device, "generator": generator}
    weight = torch.randn(2, shape.layers, shape.outputs, shape.hidden, dtype=torch.bfloat16, **like)
    norm = 1 + 0.1 * torch.randn(shape.layers, shape.head_dim, **like)
    return Stage(shape, weight.mul_(shape.hidden**-0.5), norm.bfloat16())


def random_input(shape, rows, device):
    hidden = torch.randn(rows, shape.hidden, device=device).bfloat16()
    return hidden, (torch.arange(rows, device=device) + 12345) % shape.positions


def exact(stage, hidden, positions):
    """The same in float64, rounded nowhere."""
    shape = stage.shape
    x, w = hidden.double(), stage.weight.double().view(2, shape.layers, shape.outputs, shape.hidden)
    kv = torch.einsum("th,slnh->sltn", x, w).unflatten(-1, (shape.kv_heads, shape.head_dim))
    k = kv[0] * torch.rsqrt(kv[0].square().mean(-1, keepdim=True) + shape.eps) * stage.norm.double()[:, None]
    cos, sin = stage.cos[positions].double()[:, None], stage.sin[positions].double()[:, None]
    a, b = k.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1), kv[1]


def check(name, got, stage, hidden, positions, bound=5e-3):
    """Raises unless K and V are near the float64 ones, on some first and last rows."""
    rows = torch.arange(hidden.shape[0], device=hidden.device)
    rows = torch.unique(torch.cat((rows[:24], rows[-24:])))
    for part, ours, wanted in zip("kv", got, exact(stage, hidden[rows], positions[rows])):
        error = float((ours[:, rows].double() - wanted).norm() / wanted.norm())
        if not error <= bound:
            raise SystemExit(f"{name}: {part} is off by {error:.2e} at T = {hidden.shape[0]}: not timed")


class SglangStage:
    """The same weights through FusedKVMaterializeHelper.materialize of the SGLang at `path`: that one source
    file is loaded from there. K and V are left where the helper has them; nothing writes a cache."""

    def __init__(self, path, stage):
        shape, path = stage.shape, pathlib.Path(path)
        source = path if path.is_file() else next(iter(sorted(path.rglob("fused_kv_materialize.py"))), None)
        if source is None:
            raise SystemExit(f"no fused_kv_materialize.py under {path}")
        spec = importlib.util.spec_from_file_location("sglang_fused_kv_materialize", source)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        rotary = types.SimpleNamespace(
            rotary_dim=shape.head_dim, is_neox_style=True, cos_sin_cache=torch.cat((stage.cos, stage.sin), -1)
        )
        weight = stage.weight.view(2, shape.layers, shape.outputs, shape.hidden)
        layers = [self._layer(stage, rotary, weight[:, i], i) for i in range(shape.layers)]
        self.helper = module.FusedKVMaterializeHelper(
            layers,
            rotary,
            shape.kv_heads,
            shape.head_dim,
            stage.weight.device,
            max_position_hint=shape.positions,
        )
        self.parts = [None] * shape.layers

    @staticmethod
    def _layer(stage, rotary, weight, index):
        shape = stage.shape
        return types.SimpleNamespace(
            self_attn=types.SimpleNamespace(
                num_kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                rotary_emb=rotary,
                q_size=0,
                kv_size=shape.outputs,
                qkv_proj=types.SimpleNamespace(weight=weight.reshape(-1, shape.hidden)),
                k_norm=types.SimpleNamespace(
                    weight=stage.norm[index, 0].to(stage.weight.dtype), variance_epsilon=shape.eps
                ),
            )
        )

    def _keep(self, layer, k, v):
        self.parts[layer] = (k, v)

    def __call__(self, hidden, positions):
        self.helper.materialize(hidden, positions, self._keep)

    def result(self):
        return torch.stack([k for k, _ in self.parts]), torch.stack([v for _, v in self.parts])
