"""Maps a model's Hugging Face tensors to torchtitan's parameters, and back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rlrun.converters.families.expected_tensors import Lenience, check_shapes, hf_shapes
from rlrun.converters.families.expert_storage import each_expert
from rlrun.converters.tensors.arranged import Paired, reorder, stack_contents, transpose
from rlrun.converters.tensors.content import Content, Plain, plain
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import StoredTensor
from rlrun.models.architecture import Architecture
from rlrun.models.families.table import family_named
from rlrun.models.hf_tensor import HfTensor
from rlrun.models.tensor_names import hf_tensors, is_beside_policy, is_derived


@dataclass(slots=True)
class Mapped:
    """Contents under their new names, and the names of missing and ignored tensors."""

    contents: dict[str, Content] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    """Known tensors that are not parameters, for instance derived buffers."""


@dataclass(frozen=True, slots=True)
class StoredParameters:
    """A training checkpoint's parameters by their names in torchtitan."""

    described: Mapping[str, TensorInfo]
    read: Callable[[str], StoredTensor]
    """Returns a parameter by its name."""
    where: str
    """The checkpoint's folder, for error messages."""
    own: bool
    """Whether rlrun's trainer wrote them, which orders rotary pairs as Hugging Face does."""
    fixed: Mapping[str, Content]
    """Hugging Face tensors that are not trained, for those that the checkpoint does not have."""


def check_names(
    expected: Mapping[str, tuple[int, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
    lenience: Lenience,
) -> Mapped:
    """Returns the missing and unknown names that are accepted. Raises ValueError as `check_shapes` does."""
    missing, unknown = check_shapes(expected, shapes, where, lenience)
    return Mapped(missing=missing, unknown=unknown)


def to_parameters(
    model: Architecture, contents: Mapping[str, Content], where: str, lenience: Lenience
) -> Mapped:
    """Maps Hugging Face tensors to torchtitan's parameters, in the layout of torchtitan's own checkpoints."""
    contents = _each_expert(contents, model)
    known = {name: content for name, content in contents.items() if not is_derived(name, model)}
    shapes = {name: content.tensor.shape for name, content in known.items()}
    mapped = check_names(hf_shapes(model), shapes, where, lenience)
    mapped.passed = sorted(contents.keys() - known.keys() - alias_names_of(model).keys())
    for name, tensors in _by_parameter(model).items():
        if all(tensor.name in known for tensor in tensors):
            members = [known[tensor.name] for tensor in tensors]
            whole = members[0] if tensors[0].expert is None else stack_contents(members)
            if tensors[0].transposed:
                whole = transpose(whole)
            if tensors[0].sections:
                whole = reorder(whole, tensors[0].sections, heads_first=True)
            mapped.contents[name] = _paired(model, name, whole, side_by_side=True)
    return mapped


def to_hf(model: Architecture, parameters: StoredParameters, lenience: Lenience) -> Mapped:
    """Maps torchtitan's parameters to Hugging Face tensors."""
    described, fixed = parameters.described, parameters.fixed
    aliases = alias_names_of(model)
    shapes = {name: tensor.shape for name, tensor in described.items() if name not in aliases}
    absent = {
        tensor.parameter: fixed[tensor.name]
        for tensor in hf_tensors(model)
        if tensor.name in fixed and tensor.parameter not in described
    }
    shapes |= {name: content.tensor.shape for name, content in absent.items()}
    mapped = check_names(_parameter_shapes(model), shapes, parameters.where, lenience)
    stored = {name: parameters.read(name) for name in _by_parameter(model) if name in described}
    for tensor in hf_tensors(model):
        if tensor.parameter in absent:
            mapped.contents[tensor.name] = absent[tensor.parameter]
        if tensor.parameter not in stored:
            continue
        whole = stored[tensor.parameter]
        content: Content = plain(whole if tensor.expert is None else whole.index(tensor.expert))
        if tensor.transposed:
            content = transpose(content)
        if tensor.sections:
            content = reorder(content, tensor.sections, heads_first=False)
        if not parameters.own:
            content = _paired(model, tensor.parameter, content, side_by_side=False)
        mapped.contents[tensor.name] = content
    mapped.contents |= {name: content for name, content in fixed.items() if is_beside_policy(name, model)}
    return mapped


def _each_expert(contents: Mapping[str, Content], model: Architecture) -> dict[str, Content]:
    """Returns the contents with one for each matrix of each expert; quantised experts stay together."""
    stored = {name: content.stored for name, content in contents.items() if isinstance(content, Plain)}
    others = {name: content for name, content in contents.items() if name not in stored}
    if (split := each_expert(stored, model)).keys() == stored.keys():
        return dict(contents)
    return others | {name: plain(tensor) for name, tensor in split.items()}


def alias_names_of(model: Architecture) -> dict[str, str]:
    """Returns the second names that parameters have in torchtitan's checkpoints, with their first names."""
    return {"lm_head.weight": "tok_embeddings.weight"} if model.tied else {}


def _by_parameter(model: Architecture) -> dict[str, list[HfTensor]]:
    groups: dict[str, list[HfTensor]] = {}
    for tensor in hf_tensors(model):
        groups.setdefault(tensor.parameter, []).append(tensor)
    return groups


def _parameter_shapes(model: Architecture) -> dict[str, tuple[int, ...]]:
    return {
        name: (() if tensors[0].expert is None else (len(tensors),)) + tensors[0].parameter_shape
        for name, tensors in _by_parameter(model).items()
    }


def _paired(model: Architecture, parameter: str, content: Content, side_by_side: bool) -> Content:
    """Reorders rotary pairs of families for which torchtitan rotates neighbouring rows."""
    rotated = parameter.endswith((".qkv_linear.wq.weight", ".qkv_linear.wk.weight"))
    if not rotated or not family_named(model.family).pairs_side_by_side:
        return content
    return Paired(content, model.head_dim, side_by_side)
