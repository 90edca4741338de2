"""Refuses text that has no UTF-8 form."""


def refuse_lone_surrogates(text: str) -> None:
    """JSON can spell half a surrogate pair, which no tokenizer, log or protobuf takes.

    Raises ValueError naming the first one; its message holds no character of the text.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code_point = ord(text[error.start])
        raise ValueError(f"text has a lone surrogate U+{code_point:04X} at character {error.start}") from None
