"""BLEU, whose tokenizer suits the script of the references."""

import pytest

from posexp.runs import bleu


@pytest.mark.parametrize(
  ("language", "text", "expected"),
  [
    *((name, "今天天气很好，我们去公园。", "zh") for name in ("zh-CN", "zho_Hans", "yue", "b")),
    ("target", "我们使用 TensorFlow 和 PyTorch 训练模型", "zh"),
    ("en", "The actor 成龙 was born here", "13a"),
    ("zh", "Guten Tag, Frau Müller", "13a"),
    ("ja_JP", "東京都千代田区", "char"),
    ("jav", "東京都千代田区", "zh"),
    ("b", "私は東京に住んでいます", "char"),
    ("ko", "나는 서울에 산다", "char"),
    *(
      ("b", text, "char") for text in ("แปดร้อยเก้าล้าน", "ຂ້ອຍມັກອ່ານ", "ខ្ញុំស្រឡាញ់", "ကျွန်တော်", "བོད་སྐད་ཡིག")
    ),
    ("hi", "नमस्ते दुनिया", "13a"),
    ("de", "12 34 56", "13a"),
    ("zh", "今天天气很好，我们去公园。|It is a fine day today.|OK", "zh"),
    ("de", "|".join(["今天天气很好", *["Guten Tag, Frau Müller"] * 9]), "13a"),
  ],
)
def test_bleu_follows_the_script_of_the_references(language, text, expected):
  assert bleu.tokenizer(text.split("|"), language) == expected
  if expected != "13a":
    for tokenize in (expected, language):  # a tokenizer, or a language for which one is chosen
      texts = text.split("|")
      assert bleu.corpus(texts, texts, tokenize)["bleu"] == pytest.approx(100)
