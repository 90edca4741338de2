"""Tells the form of message content that a chat template reads: a string, or a list of parts."""

from enum import Enum

from jinja2 import nodes


class ContentForm(Enum):
    STRING = "string"
    PARTS = "parts"


def content_form(template: nodes.Template) -> ContentForm:
    """A template that loops over a message's `content`, or over a variable set from it, reads parts.

    So does one that loops over anything named `content`, as macros name it.
    """
    names = {"content"} | {
        assignment.target.name
        for assignment in template.find_all(nodes.Assign)
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node)
    }
    for loop in template.find_all(nodes.For):
        iterated = _unfiltered(loop.iter)
        if _is_content(iterated) or (isinstance(iterated, nodes.Name) and iterated.name in names):
            return ContentForm.PARTS
    return ContentForm.STRING


def _is_content(expression: nodes.Node) -> bool:
    match _unfiltered(expression):
        case nodes.Getattr(attr="content") | nodes.Getitem(arg=nodes.Const(value="content")):
            return True
    return False


def _unfiltered(expression: nodes.Node) -> nodes.Node:
    while isinstance(expression, nodes.Filter | nodes.Test) and expression.node is not None:
        expression = expression.node
    return expression
