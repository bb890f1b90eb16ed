"""An experiment file: one TOML file, checked completely before anything is done with it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

import tomli_w
from pydantic import AfterValidator, Field, SerializeAsAny, ValidationError, model_validator

from upcycled.algorithms import ALGORITHMS
from upcycled.core.cohort import Participation
from upcycled.core.coefficients import Constant, Decaying, LambdaHalf, Proximal
from upcycled.core.errors import InputError, suggest
from upcycled.core.solvers import LocalSGD
from upcycled.data import FederatedData
from upcycled.engines import ENGINES
from upcycled.experiments.overrides import put, with_overrides
from upcycled.experiments.sentences import dotted, from_validation, must_be, named, reworded
from upcycled.experiments.sources import (
    LATER_SOURCES,
    MODELS,
    SOURCES,
    Count,
    DataTable,
    Factory,
    Logistic,
    ModelTable,
    Seed,
    model_arguments,
)
from upcycled.experiments.tables import AsTuple, BuiltTable, Table, table_of
from upcycled.privacy import ModelClipping
