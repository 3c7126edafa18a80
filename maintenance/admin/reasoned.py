"""Actions that ask for a reason: permission, a page that says what will happen, an audit row, an honest report.

For any `ModelAdmin`, also of other apps: mix `ReasonedActionsAdmin` in, name the actions, and give each its
`has_<name>_permission` method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.contrib.admin.widgets import AdminTextareaWidget
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import DatabaseError, transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode

from maintenance.errors import WakefulError, described

if TYPE_CHECKING:  # generic for the type checker only
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin

MOST_AT_ONCE = 500
"""Objects of one action; a page of a web process must end."""

NAMED = 10
"""Objects that a message or a page names before it counts the rest."""


class ReasonForm(forms.Form):
    """Why. An action that needs more derives its form from this one."""

    reason = forms.CharField(
        max_length=1_000,
        widget=AdminTextareaWidget(attrs={"rows": 3, "autofocus": True}),
        help_text="Kept in the audit log, beside your name. Say what someone should know who reads it in a year.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonedAction:
    """One action and its words."""

    name: str
    """Also the codename of its permission method: `has_<name>_permission(request)`."""
    label: str
    """On the button and in the list of actions: `Force a pass`."""
    explanation: str
    """What will happen, in full sentences, for whoever is about to do it."""
    perform: Callable[..., bool]
    """`perform(object, *, actor, reason, …)`, with every further field of the form. `False`: nothing to change."""
    unchanged: str
    """Why nothing was to be changed, after the names: `were paused already`."""
    applies: Callable[[Any], bool] = lambda _: True
    """Whether the page of one object offers the action; the list offers it always."""
    form: type[ReasonForm] = ReasonForm


@dataclass(slots=True)
class Report:
    """What came of an action, object by object."""

    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)


class ReasonedActionsAdmin(_ModelAdmin):
    """A `ModelAdmin` whose actions are `reasoned_actions`, in its list and on the page of each object."""

    reasoned_actions: ClassVar[Sequence[ReasonedAction]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.actions = [_as_admin_action(action) for action in cls.reasoned_actions]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.act_view)
        return [path("act/<str:name>/", view, name=self._act_url_name()), *super().get_urls()]

    # Under ATOMIC_REQUESTS, too, each object has a transaction of its own: a mutation of a second thread inside one
    # transaction would be refused.
    @transaction.non_atomic_requests
    def act_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """The page between wish and deed. A GET shows it, a POST with a reason acts."""
        action = next((each for each in self.reasoned_actions if each.name == name), None)
        if action is None:
            raise Http404
        if not self._may(request, action):
            raise PermissionDenied
        ids = (request.POST or request.GET).getlist(ACTION_CHECKBOX_NAME)
        if request.method != "POST":
            return self.confirm(request, action, ids)
        form = action.form(request.POST)
        if not form.is_valid():
            return self.confirm(request, action, ids, form)
        report = self._perform(request, action, self._objects(request, ids), form.cleaned_data)
        self._tell(request, action, report, missing=len(set(ids)) - _told(report))
        return HttpResponseRedirect(self._back(request, ids))

    def confirm(
        self, request: HttpRequest, action: ReasonedAction, ids: Sequence[str], form: ReasonForm | None = None
    ) -> HttpResponse:
        """The intermediate page, or back to the list if there is nothing to act on."""
        objects = [] if len(ids) > MOST_AT_ONCE else list(self._objects(request, ids))
        if not objects:
            text = f"Choose at least one and at most {MOST_AT_ONCE}; the management command takes more."
            self.message_user(request, text, messages.ERROR)
            return HttpResponseRedirect(self._back(request, []))
        form = form or action.form(initial=self.initial_for(action, objects))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": action.label,
            "action": action,
            "act_url": reverse(f"admin:{self._act_url_name()}", args=[action.name]),
            "back_url": self._back(request, ids),
            "named": [(each, self.name_of(each), self.details_of(request, each)) for each in objects[:NAMED]],
            "more": max(0, len(objects) - NAMED),
            "objects": objects,
            "checkbox_name": ACTION_CHECKBOX_NAME,
            "form": form,
            "filters": _filters_of(request),
            "media": self.media + form.media,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/wakeful_maintenance/reasoned_action.html", context)

    # What an admin of another app may say differently.

    def actor_of(self, request: HttpRequest) -> Any:
        """Who acts, as `perform` takes it."""
        return request.user.get_username()

    def name_of(self, obj: Model) -> str:
        """How pages and messages of an action call the object."""
        return str(obj)

    def details_of(self, request: HttpRequest, obj: Model) -> str:
        """What someone has to see before acting on this object, beside its name."""
        del request, obj
        return ""

    def initial_for(self, action: ReasonedAction, objects: Sequence[Model]) -> dict[str, Any]:
        """What the action's form begins with."""
        del action, objects
        return {}

    def actions_for(self, request: HttpRequest, obj: Model) -> list[tuple[ReasonedAction, str]]:
        """The actions that this user may take on this object and that would do something, each with its URL."""
        allowed = [each for each in self.reasoned_actions if each.applies(obj) and self._may(request, each)]
        query = "?" + urlencode({ACTION_CHECKBOX_NAME: str(obj.pk)})
        return [(each, reverse(f"admin:{self._act_url_name()}", args=[each.name]) + query) for each in allowed]

    def _may(self, request: HttpRequest, action: ReasonedAction) -> bool:
        allowed: bool = getattr(self, f"has_{action.name}_permission")(request)
        return allowed and self.has_view_permission(request)

    def _objects(self, request: HttpRequest, ids: Iterable[str]) -> QuerySet[Any]:
        # In one order for everybody, so that two reports of the same objects read alike.
        chosen = [key for key in list(ids)[: MOST_AT_ONCE + 1] if self._may_exist(key)]
        return self.get_queryset(request).filter(pk__in=chosen).order_by("pk")

    def _may_exist(self, key: str) -> bool:
        """Whether a row can have this key: a URL can carry anything."""
        try:
            self.opts.pk.to_python(key)
        except ValidationError:
            return False
        return "\x00" not in key

    def _perform(
        self, request: HttpRequest, action: ReasonedAction, objects: Iterable[Model], said: dict[str, Any]
    ) -> Report:
        """Each object in a transaction of its own, so that one failure stops no other."""
        report = Report()
        for obj in objects:
            name = self.name_of(obj)
            try:
                # Race closed: a deed without its entry in the admin's log, if the process ends between the two.
                with transaction.atomic():
                    changed = action.perform(obj, actor=self.actor_of(request), **said)
                    self.log_change(request, obj, f"{action.label}: {said['reason']}")
            except (WakefulError, DatabaseError) as error:
                report.failed.append((name, described(error)))
            else:
                (report.changed if changed else report.unchanged).append(name)
        return report

    def _tell(self, request: HttpRequest, action: ReasonedAction, report: Report, *, missing: int) -> None:
        if report.changed:
            self.message_user(request, f"{action.label}: done for {_names(report.changed)}.", messages.SUCCESS)
        if report.unchanged:
            self.message_user(request, f"{_names(report.unchanged)} {action.unchanged}.", messages.WARNING)
        for name, text in report.failed[:NAMED]:
            self.message_user(request, f"{action.label} failed for {name}: {text}.", messages.ERROR)
        if len(report.failed) > NAMED:
            self.message_user(request, f"{len(report.failed) - NAMED} more failed.", messages.ERROR)
        if missing > 0:
            self.message_user(request, f"{missing} of the chosen no longer exist.", messages.WARNING)

    def _back(self, request: HttpRequest, ids: Sequence[str]) -> str:
        """To the page of the one object, or to the list as it was filtered."""
        base = f"admin:{self.opts.app_label}_{self.opts.model_name}"
        filters = _filters_of(request)
        if len(ids) == 1 and not filters:
            return reverse(f"{base}_change", args=[quote(ids[0])])
        return reverse(f"{base}_changelist") + (f"?{filters}" if filters else "")

    def _act_url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_act"


def _as_admin_action(action: ReasonedAction) -> Callable[..., HttpResponse]:
    """The entry in the list's menu: it only leads to the intermediate page."""

    @admin.action(permissions=[action.name], description=action.label)
    def lead_to_the_page(
        model_admin: ReasonedActionsAdmin, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse:
        ids = [str(pk) for pk in queryset.values_list("pk", flat=True)[: MOST_AT_ONCE + 1]]
        return model_admin.confirm(request, action, ids)

    lead_to_the_page.__name__ = action.name
    return lead_to_the_page


def _filters_of(request: HttpRequest) -> str:
    """The list's query string: carried through the page, so that acting does not lose the filter."""
    if "_filters" in request.POST:
        return request.POST["_filters"]
    return "" if ACTION_CHECKBOX_NAME in request.GET else request.GET.urlencode()


def _told(report: Report) -> int:
    return len(report.changed) + len(report.unchanged) + len(report.failed)


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
