from tests.lm.conftest import lms, make_lm, tokenizers

__all__ = ["lms", "make_lm", "tokenizers"]
