"""The JSON documents of the HTTP interface as pydantic models: what is parsed, and what /docs shows.

The body of an encode request is strict at the top, where a misspelt key would change the answer, and
lenient inside a part, where OpenAI dialects add hints of their own (`detail`, `uuid`).
Knows nothing of the pool, nor of how bodies are read.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Encoding = Literal["base64", "float"]


class ImageUrl(BaseModel):
    """Where the image is; the pool reads data URIs (RFC 2397) only."""

    url: str = Field(description="A data URI, `data:image/png;base64,...`. The format is read off the bytes.")
    detail: str | None = Field(None, description="Accepted for compatibility; has no effect.")


class ImagePart(BaseModel):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageUrl | str = Field(description="An object with `url`, or the data URI itself.")


class InputAudio(BaseModel):
    """An audio file in base64."""

    data: str = Field(description="The file in base64, not the bare samples.")
    format: str | None = Field(None, description="wav, mp3, ...; the format is read off the bytes.")


class AudioPart(BaseModel):
    """An audio clip."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class VideoUrl(BaseModel):
    """Where the video is; the pool reads data URIs (RFC 2397) only."""

    url: str = Field(description="A data URI, `data:video/mp4;base64,...`. The format is read off the bytes.")


class VideoPart(BaseModel):
    """A video."""

    type: Literal["video_url"]
    video_url: VideoUrl


Part = Annotated[ImagePart | AudioPart | VideoPart, Field(discriminator="type")]
PART_TYPES = ("image_url", "input_audio", "video_url")


class EncodeBody(BaseModel):
    """The JSON body of an encode request."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="The served name of the model or one of its aliases.")
    input: list[Part] = Field(min_length=1, description="Content parts; one item each, answered in order.")
    encoding_format: Encoding | None = Field(
        None,
        description="How a JSON answer writes embeddings; base64 unless given. "
        "Where Accept leaves the choice, giving it asks for JSON.",
    )


class TensorData(BaseModel):
    """An embedding as the bytes of its rows."""

    dtype: Literal["float32", "float16", "bfloat16"]
    shape: tuple[int, int] = Field(description="Rows (tokens) and columns (width).")
    data: str = Field(description="Base64 of the rows, little endian, row after row.")


class SourceInfo(BaseModel):
    """What the decoder found; zero where a field does not apply."""

    format: str
    width: int = Field(description="Pixels.")
    height: int = Field(description="Pixels.")
    seconds: float = Field(description="Length of an audio clip.")


class PartInfo(BaseModel):
    """Columns of an embedding that mean something of their own."""

    name: str
    width: int


class ItemInfo(BaseModel):
    """What an answer says of an item besides its embedding."""

    index: int = Field(description="Position in the request.")
    modality: Literal["image", "video", "audio"]
    tokens: int = Field(description="Rows of the embedding.")
    width: int = Field(description="Columns of the embedding.")
    dtype: Literal["float32", "float16", "bfloat16"]
    grid: tuple[int, int, int] = Field(description="Frames or windows, rows, columns of the patches.")
    prefix_tokens: int = Field(description="Leading rows that belong to no grid position.")
    parts: list[PartInfo] = Field(description="The columns from left to right; empty if they are one thing.")
    source: SourceInfo
    digest: str = Field(description="Hex SHA-256 of the bytes that were sent.")


class EmbeddingItem(ItemInfo):
    """One item of a JSON answer."""

    object: Literal["embedding"]
    embedding: TensorData | list[list[float]]


class Usage(BaseModel):
    """What a request cost."""

    total_tokens: int = Field(description="Rows of all embeddings together.")


class EncodeReply(BaseModel):
    """The JSON answer to an encode request."""

    id: str = Field(description="The request id, as in the x-request-id header.")
    object: Literal["list"]
    model: str
    data: list[EmbeddingItem]
    usage: Usage


class SharedItem(ItemInfo):
    """One item of an answer in shared memory: `tokens` rows of `width` columns of `dtype`, row after row."""

    object: Literal["embedding"]
    offset: int = Field(description="Bytes from the start of the memory to the first row.")


class MemoryHandle(BaseModel):
    """How to come by the memory of an answer.

    Connect to the socket (`AF_UNIX`, `SOCK_SEQPACKET`), send the token as one message, receive one message
    with a descriptor (`SCM_RIGHTS`), and map it. The memory counts for the server until the connection ends:
    send `released` first, so that it can tell who is done from who died. A token is good once.
    """

    socket: str = Field(description="Name in the abstract namespace: a zero byte goes before it.")
    token: str
    num_bytes: int
    claim_s: float = Field(description="Seconds after which the memory is given up if nobody has taken it.")


class SharedReply(BaseModel):
    """The answer to an encode request in shared memory."""

    id: str = Field(description="The request id, as in the x-request-id header.")
    object: Literal["list"]
    model: str
    data: list[SharedItem]
    memory: MemoryHandle
    usage: Usage


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str = Field(description="For people; names the limit, the value and the setting.")
    type: str
    code: str = Field(description="For programs; the descriptions of the statuses list them.")
    param: str | None = Field(description="The place in the request, e.g. `input[2].image_url.url`.")


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


class WorkerCount(BaseModel):
    """Workers of the replica that answered."""

    ready: int
    total: int


class ReadyReply(BaseModel):
    """Whether the replica that answered can encode now."""

    status: str = Field(description='"ready", or what it is busy with.')
    workers: WorkerCount


class HealthReply(BaseModel):
    """Sent by any process that is alive."""

    status: Literal["alive"]


class ModelCard(BaseModel):
    """A name that requests may give."""

    id: str
    object: Literal["model"]
    created: int = Field(description="Unix time at which this replica was built.")
    owned_by: str
    root: str = Field(description="The served name.")
    parent: str | None = Field(description="The served name for an alias, else null.")


class ModelList(BaseModel):
    """The served name first, then its aliases."""

    object: Literal["list"]
    data: list[ModelCard]
