"""Which regular expressions split text before byte-pair merging, by `tokenizer.ggml.pre`.

A byte-level BPE vocabulary is only right together with the split it was trained with: the wrong one
still decodes, but costs a fifth more tokens and most of a model's quality on code. So the table
holds the names whose patterns are published in the models' own `tokenizer.json`, and every other
name is refused. This file knows patterns; it does not run them.
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.errors import UnsupportedError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASED_WORD = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# GPT-2's words after every digit was cut out on its own, as one pattern: a run of spaces before a
# digit ends its piece and so keeps its last space, which the lookahead says.
_GPT2_DIGITS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
_LLAMA3 = _CONTRACTION + _WORDS % "{1,3}"
_QWEN2 = _CONTRACTION + _WORDS % ""
_QWEN35 = (
    _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    + _SPACES
)
_TEKKEN = _CASED_WORD % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_GPT4O = (
    _CASED_WORD % (_CONTRACTION + "?", _CONTRACTION + "?")
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _SPACES
)
_SEED_CODER = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_CJK = r"[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_DEEPSEEK_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
# The cased letters of Unicode as DeepSeek's first tokenizer lists them; those that Unicode
# normalization would replace are escaped.
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    r"ὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯ"
    r"ꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How one family of byte-level BPE vocabularies splits text.

    Attributes:
        patterns: Oniguruma patterns applied in turn; each cuts the pieces of the one before into
            its matches and what lies between them.
        ignore_merges: a piece that is a token as a whole is taken without merging.
        add_bos: whether such files want a BOS when `tokenizer.ggml.add_bos_token` is absent.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_FAMILIES: tuple[tuple[PreTokenizer, str], ...] = (
    (
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (
        PreTokenizer((_QWEN2,)),
        "qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez kormo grok-2 solar-open",
    ),
    (PreTokenizer((_QWEN35,)), "qwen35"),
    (
        PreTokenizer((GPT2,)),
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum"
        " jina-es jina-de jina-v2-es jina-v2-de",
    ),
    (
        PreTokenizer((_GPT2_DIGITS,)),
        "smollm starcoder refact command-r codeshell exaone minerva-7b",
    ),
    (
        PreTokenizer((r"[\p{P}$+<=>^~|`]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        "falcon",
    ),
    (PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer((_GPT4O,), ignore_merges=True), "gpt-4o llama4 minimax-m2 kanana2"),
    (
        PreTokenizer(
            (
                r"[\r\n]",
                _DEEPSEEK_LETTERS,
                r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
                r"(?<!\s)\s+$",  # published without the lookbehind, which only saves vain tries
                _DEEPSEEK_CJK,
                r"\p{N}",
            )
        ),
        "deepseek-llm",
    ),
    (
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
        "deepseek-coder",
    ),
    (
        PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3_WORDS)),
        "deepseek-v3 hunyuan-dense joyai-llm",
    ),
    (PreTokenizer((_SEED_CODER,)), "seed-coder"),
    (PreTokenizer((_BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: family for family, names in _FAMILIES for name in names.split()
}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """Return the split that `tokenizer.ggml.pre` names.

    Raises:
        UnsupportedError: the name is missing or not in the table.
    """
    if name is not None and name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    what = (
        "the file does not name its pre-tokenizer"
        if name is None
        else f"pre-tokenizer {name!r} is not known"
    )
    raise UnsupportedError(
        what,
        where="tokenizer.ggml.pre",
        remedy="Guessing one would change the ids. Known: " + ", ".join(sorted(PRE_TOKENIZERS)),
    )
