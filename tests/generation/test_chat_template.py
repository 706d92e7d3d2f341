"""Chat templates: those of the field, and hostile ones."""

import sys

import pytest

from flowmx.generation.chat_template import ChatTemplate, ChatTemplateError

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]
CHATML = """{% for message in messages %}
{% if loop.first and message.role != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
TURNS = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
  {%- set first = messages[0]['content'] + '\\n\\n' -%}{%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first = '' -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
  {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('Roles must alternate.') }}
  {%- endif -%}
  {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
  {{ '<turn>' ~ role ~ '\\n' ~ (first if loop.first else '') ~ message['content'] | trim ~ '</turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<turn>model\\n' }}{%- endif -%}"""
TOOLS = """{%- set ns = namespace(count=0) %}{%- for tool in tools %}{%- set ns.count = ns.count + 1 %}
{{- tool | tojson }}{% if not loop.last %}, {% endif %}{% endfor %} ({{ ns.count }})"""


def test_templates_of_the_field():
    assert ChatTemplate(CHATML).render(CHAT[1:3]) == (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ChatTemplate(CHATML).render(CHAT[:2], add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )
    assert ChatTemplate(TURNS, bos="<s>").render(CHAT) == (
        "<s><turn>user\nBe brief.\n\nHi</turn>\n<turn>model\nHello</turn>\n<turn>user\nBye</turn>\n<turn>model\n"
    )
    with pytest.raises(ChatTemplateError, match=r"refuses the chat: Roles must alternate\."):
        ChatTemplate(TURNS).render([CHAT[1], CHAT[1]])


def test_tools_are_json_without_html_escapes():
    tools = [{"name": "f", "text": "<ü>"}, {"name": "g"}]
    assert ChatTemplate(TOOLS).render([], tools=tools) == '{"name": "f", "text": "<ü>"}, {"name": "g"} (2)'


def test_arguments_that_templates_use():
    source = (
        "{{ value | tojson(ensure_ascii=False, indent=2) }}|{{ names | join(d=', ') }}|"
        "{{ 'aaa' | replace('a', 'b', 1) }}|{{ 'a\nb' | indent(2) }}|{% generation %}said{% endgeneration %}|"
        "{{ names | map('upper') | list }}"
    )
    assert ChatTemplate(source).render([], value=["ü"], names=["x", "y"]) == (
        "[\n  \"ü\"\n]|x, y|baa|a\n  b|said|['X', 'Y']"
    )


def test_functions_and_variables():
    template = ChatTemplate(
        "{{ strftime_now('%Y') }} {{ mood }} {{ ['a', 'b'] | join('-') }} {{ 'aba' | replace('a', 'c') }}"
    )
    year, *rest = template.render([], mood="calm").split(" ")
    assert (len(year), rest) == (4, ["calm", "a-b", "cbc"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "200000 steps"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ 'a' * 10**9 }}", "makes a text of 1000000000 characters"),
        (
            "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "makes a text",
        ),
        (
            "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
            "makes a text",
        ),
        ("{% set x = 'a' * 9999999 %}{% for i in range(99999) %}{{ x }}{% endfor %}", "makes a text"),
        ("{{ 'a'.ljust(10**12) }}", "makes a text"),
        ("{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}", "makes a text"),
        ("{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}", "makes a text"),
        ("{{ ('a' * 1000000) | list | join('b' * 1000000) }}", "makes a text"),
        ("{{ range(10**9) }}", "OverflowError"),
        ("{% for i in range(99999) %}{% set y = x | upper %}{% endfor %}", "makes texts of more than"),
        (
            "{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = n.x + [x.upper()] %}{% endfor %}",
            "makes texts",
        ),
        ("{{ 'a' | indent(10**9) }}", "indents by more than 256"),
        ("{{ 2 ** 10 ** 9 }}", "exponent|characters|steps"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError|not safely callable"),
        ("{{ {} | tojson(indent=10**9) }}", "indent is 1000000000"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_hostile_templates_end_with_an_error(source, message):
    if "2 ** 10" in source:
        source = "{{ 2 ** (10 ** 9) }}"
    before = sys.gettrace()
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source).render([], x="a" * 1_000_000)
    assert sys.gettrace() is before


def test_a_template_that_is_not_valid():
    with pytest.raises(ChatTemplateError, match="the chat template is invalid: "):
        ChatTemplate("{% for %}")
