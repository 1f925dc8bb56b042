from __future__ import annotations

import struct

import numpy as np
import pytest

from encoder_pool.weights import ctranslate2, whisper

from . import tiny

FILE = tiny.model_bin(tiny.TENSORS)


def test_every_variable_comes_back_with_its_shape_and_type() -> None:
    read = ctranslate2.read(FILE)
    assert sorted(read) == ["half", "int"]
    for name, array in tiny.TENSORS.items():
        assert read[name].dtype == array.dtype
        assert np.array_equal(read[name], array)


def test_a_file_cut_anywhere_before_its_aliases_is_a_value_error() -> None:
    end_of_variables = FILE.rindex(struct.pack("<I", 1))
    for size in range(end_of_variables):
        with pytest.raises(ValueError, match="it ends early"):
            ctranslate2.read(FILE[:size])


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="binary version is 5; only 6"):
        ctranslate2.read(tiny.model_bin(tiny.TENSORS, version=5))


def test_a_size_that_does_not_match_the_shape_is_refused() -> None:
    wrong = FILE.replace(struct.pack("<BI", 4, 12), struct.pack("<BI", 4, 10))
    with pytest.raises(ValueError, match=r"variable half has shape \(2, 3\) of float16"):
        ctranslate2.read(wrong)


def test_an_unknown_type_is_refused() -> None:
    wrong = FILE.replace(struct.pack("<BI", 4, 12), struct.pack("<BI", 9, 12))
    with pytest.raises(ValueError, match="variable half has the unknown type 9"):
        ctranslate2.read(wrong)


def test_a_string_without_its_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="does not end with NUL"):
        ctranslate2.read(FILE.replace(b"TinySpec\0", b"TinySpec!"))


def test_a_model_without_a_whisper_encoder_is_refused() -> None:
    with pytest.raises(ValueError, match="it has no variable encoder/"):
        whisper.tensors(FILE)
