"""Renders chat messages to a prompt's text, by the model's own template."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
from jinja2.meta import find_undeclared_variables

from master.text.content_form import content_form
from master.text.message_form import MessageForm, message_form
from master.text.model_folder import ModelFolder
from master.text.special_tokens import SpecialTokens
from master.text.template_environment import TemplateEnvironment, render_bounded
from master.text.template_messages import plain, template_messages

_DEFAULT = "default"
_TOOL_USE = "tool_use"
_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message")
# As transformers has it: templates may trim the text they are given, so the tag's own last space tells whether it was.
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


class TemplateError(ValueError):
    """The template refused the messages, or failed on them; the message is the template's own."""


class ChatTemplate:
    """A model's templates by name; `default` serves all requests but, where there is `tool_use`, those with tools.

    Immutable, and safe to use from several threads at once.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are texts by names such as `bos_token`. Raises TemplateError for bad syntax."""
        environment = TemplateEnvironment()
        self._special_tokens = dict(special_tokens)
        self._templates = {
            name: _Compiled(environment, name, source, self._special_tokens) for name, source in templates.items()
        }

    @classmethod
    def load(cls, folder: Path) -> "ChatTemplate":
        """Takes chat_template.jinja and additional_chat_templates/, else tokenizer_config.json's `chat_template`.

        A folder without any makes a ChatTemplate that cannot render.
        Raises ModelFolderError for a malformed file, TemplateError for bad syntax.
        """
        model_folder = ModelFolder(folder)
        declared = model_folder.json_object("tokenizer_config.json").get("chat_template")
        templates = _declared_templates(declared)
        default = model_folder.text("chat_template.jinja")
        if default is not None:
            templates = {_DEFAULT: default}
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            templates[path.stem] = model_folder.text(f"{path.parent.name}/{path.name}") or ""
        return cls(templates, SpecialTokens.load(model_folder).texts)

    @property
    def shows_tools(self) -> bool:
        """Whether chats with tools tell the model of them."""
        template = self._templates.get(_TOOL_USE, self._templates.get(_DEFAULT))
        return template is not None and template.shows_tools

    @property
    def takes_system(self) -> bool:
        template = self._templates.get(_DEFAULT)
        return template is None or template.form.takes_system

    @property
    def source(self) -> str | None:
        """The template that chats with tools go through; None where there is none."""
        template = self._templates.get(_TOOL_USE, self._templates.get(_DEFAULT))
        return None if template is None else template.source

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt's text, special tokens written out: it is to be encoded without adding any.

        `chat_template_kwargs` are further variables for the template; clients choose their names.

        `continue_final_message` leaves the last message open for the model to go on with.
        Raises TemplateError.
        """
        template = self._choose(has_tools=tools is not None)
        for name in _RESERVED:
            if chat_template_kwargs is not None and name in chat_template_kwargs:
                raise TemplateError(f"{name} is not to be given in chat_template_kwargs")
        if not messages:
            raise TemplateError("a chat needs at least one message")
        if continue_final_message and add_generation_prompt:
            raise TemplateError("continue_final_message and add_generation_prompt exclude each other")
        try:
            prepared = template_messages(messages, template.form)
            final_text = _tag_final_message(prepared) if continue_final_message else None
            variables: dict[str, object] = {"documents": None, **self._special_tokens}
            variables |= {name: plain(value) for name, value in (chat_template_kwargs or {}).items()}
            variables |= {
                "messages": prepared,
                "tools": plain(tools),
                "add_generation_prompt": add_generation_prompt,
            }
            rendered = render_bounded(template.compiled, variables)
        except TemplateError:
            raise
        except _TEMPLATE_FAULTS as error:
            raise TemplateError(str(error) or type(error).__name__) from error
        return rendered if final_text is None else _cut_at_tag(rendered, final_text)

    def _choose(self, has_tools: bool) -> "_Compiled":
        name = _TOOL_USE if has_tools and _TOOL_USE in self._templates else _DEFAULT
        if name not in self._templates:
            raise TemplateError("the model has no chat template: send a completion with a prompt instead of a chat")
        return self._templates[name]


class _Compiled:
    def __init__(
        self, environment: TemplateEnvironment, name: str, source: str, special_tokens: Mapping[str, str]
    ) -> None:
        self.source = source
        self._special_tokens = special_tokens
        try:
            parsed = environment.parse(source)
            self.compiled: jinja2.Template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template {name!r}, line {error.lineno}: {error.message}") from error
        self.shows_tools = "tools" in find_undeclared_variables(parsed)
        self.form: MessageForm = message_form(self._try, content_form(parsed))

    def _try(self, messages: Sequence[dict[str, object]]) -> str | None:
        variables = {"documents": None, "tools": None, "add_generation_prompt": False, **self._special_tokens}
        try:
            return render_bounded(self.compiled, {**variables, "messages": messages})
        except _TEMPLATE_FAULTS:
            return None


def _declared_templates(declared: object) -> dict[str, str]:
    match declared:
        case None:
            return {}
        case str():
            return {_DEFAULT: declared}
        case list():
            templates: dict[str, str] = {}
            for item in declared:
                match item:
                    case {"name": str(name), "template": str(source)}:
                        templates[name] = source
                    case _:
                        raise TemplateError(
                            "chat_template in tokenizer_config.json has an item without name or template"
                        )
            return templates
    raise TemplateError(f"chat_template in tokenizer_config.json is a {type(declared).__name__}")


def _tag_final_message(messages: Sequence[dict[str, object]]) -> str:
    """Marks the end of the last message's text, in place; returns that text."""
    final = messages[-1]
    content = final.get("content")
    match content:
        case str():
            final["content"] = content + _CONTINUE_TAG
            return content
        case [*parts, {"text": str(text), **fields}]:
            final["content"] = [*parts, {**fields, "text": text + _CONTINUE_TAG}]
            return text
    raise TemplateError("continue_final_message needs text in the last message")


def _cut_at_tag(rendered: str, final_text: str) -> str:
    tag = _CONTINUE_TAG.strip()
    if tag not in rendered or final_text.strip() not in rendered:
        raise TemplateError("continue_final_message: the template leaves out the last message's text")
    end = rendered.rindex(tag)
    is_trimmed = not rendered.startswith(_CONTINUE_TAG, end)
    return rendered[:end].rstrip() if is_trimmed else rendered[:end]
