"""Staff at the admin: who they are to the verbs, and what they may do there. All of them read; operators act."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import models
from django.db.models import Func
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dispatcher_project.pubsub import ring
from governance.actors import Actor
from governance.rules import may_configure

PERMISSION = "governance.operate"
COUNTED = 10_000


def actor(user: Any) -> Actor:
    """The actor that a signed-in member of staff is."""
    return Actor("staff", user.get_username(), operates=user.is_staff and user.has_perm(PERMISSION))


class ReadAt(Func):
    """The database's time of reading, as a column: ages in a list need no query of their own."""

    function = "clock_timestamp"
    arity = 0
    output_field = models.DateTimeField()


class CountingUpTo(Paginator):
    """Counts no further than COUNTED rows, so that a page of a long history costs what a page costs."""

    @property
    def is_cut(self) -> bool:
        return self.count >= COUNTED

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        found: int = rows.order_by()[:COUNTED].count()
        return found


class StaffChangeList(ChangeList):
    """Rows with the time of reading."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> models.QuerySet[Any]:
        return super().get_queryset(request, exclude_parameters).annotate(read_at=ReadAt())


class StaffAdmin(admin.ModelAdmin):
    """Every member of staff reads, operators edit. `empty_hint`: what to do where a list has nothing to show."""

    change_list_template = "governance/change_list.html"
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # they count the whole table once for each choice
    paginator = CountingUpTo
    list_per_page = 50
    empty_hint = ""
    rings_as: str | None = None  # what a changed row is to the dispatchers: "type", "agent"

    class Media:
        css = {"all": ["governance/admin.css"]}

    def operates(self, request: HttpRequest) -> bool:
        return may_configure(actor(request.user))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.operates(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.operates(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.operates(request)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        title = str(self.opts.verbose_name_plural).capitalize()
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return StaffChangeList

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """A row keeps its name: others refer to it by that."""
        fields = super().get_readonly_fields(request, obj)
        return [*fields, self.model._meta.pk.name] if obj else fields

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        self._ring([obj.pk])

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        pk = obj.pk
        super().delete_model(request, obj)
        self._ring([pk])

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> None:
        pks = list(queryset.values_list("pk", flat=True))
        super().delete_queryset(request, queryset)
        self._ring(pks)

    def _ring(self, pks: list[str]) -> None:
        if self.rings_as:
            ring(*(f"{self.rings_as}:{pk}" for pk in pks))


class ReadOnlyAdmin(StaffAdmin):
    """For what machines write."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class VersionedForm(forms.ModelForm):
    """Refuses to save over what somebody else changed since the form was opened."""

    seen_version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["seen_version"].initial = self.instance.version

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        seen = cleaned.get("seen_version")
        if not self.instance._state.adding and seen is not None and seen != self.instance.version:
            raise forms.ValidationError("Somebody changed this since you opened it. Open it again, then change it.")
        return cleaned


class Suggesting(forms.TextInput):
    """A text field that offers what exists and takes anything. `offer`: queryset of texts, read when shown."""

    def __init__(self, offer: models.QuerySet[Any, Any]) -> None:
        super().__init__(attrs={"class": "vTextField", "autocomplete": "off"})
        self.offer = offer

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        field = super().render(name, value, {**(attrs or {}), "list": f"offer-{name}"}, renderer)
        options = format_html_join("", '<option value="{}">', ((text,) for text in self.offer.all()[:500]))
        return format_html('{}<datalist id="offer-{}">{}</datalist>', field, name, options)


def badge(text: str, colour: str) -> SafeString:
    """A coloured word. Colours: admin.css."""
    return format_html('<span class="badge badge-{}">{}</span>', colour, text)
