import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcycled.data import FederatedData
from upcycled.data import description as module


def data_of(labels, num_classes=None):
    return FederatedData.from_arrays([np.ones((len(y), 2)) for y in labels], labels, num_classes=num_classes)


def test_numbers_agree_with_hand_counts():
    d = data_of([[0, 0, 0, 1], [1, 1]]).describe()
    # sizes 4 and 2: mean 3, population sd 1; pool 3:3, so client 0 is |3/4-1/2| away and client 1 |0-1/2|
    assert (d.clients, d.samples, d.mean, d.sd, d.min, d.max) == (2, 6, 3.0, 1.0, 2, 4)
    assert d.class_counts == (3, 3)
    assert d.label_skew == pytest.approx((0.25 + 0.5) / 2)
    assert (d.test_samples, d.validation_samples, d.features, d.classes) == (0, 0, (2,), 2)


def test_skew_is_zero_when_all_clients_look_alike():
    assert data_of([[0, 1, 2], [2, 1, 0], [0, 0, 1, 1, 2, 2]]).describe().label_skew == pytest.approx(0, abs=1e-12)


def test_skew_of_clients_with_one_class_each_is_one_minus_the_share():
    # four equal clients with a class of their own: each is at distance 1 - 1/4
    assert data_of([[0], [1], [2], [3]]).describe().label_skew == pytest.approx(0.75)


def test_pooled_shares_weigh_samples_and_not_clients():
    # pool 1/4 : 3/4 by samples; client 0 (class 0) is 3/4 away, client 1 (class 1) is 1/4 away
    assert data_of([[0], [1, 1, 1]]).describe().label_skew == pytest.approx(0.5)


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=9),
    st.sampled_from([1, 2, 7, 1 << 20]),
)
def test_blocks_of_clients_do_not_change_the_numbers(labels, block):
    data = data_of(labels, num_classes=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_VALUES", block)
        d = data.describe()
    pool = np.bincount(np.concatenate(labels), minlength=5)
    own = [np.bincount(y, minlength=5) / len(y) for y in labels]
    assert d.class_counts == tuple(pool)
    assert d.label_skew == pytest.approx(np.mean([np.abs(p - pool / pool.sum()).sum() / 2 for p in own]))


def test_parts_are_counted_apart():
    d = data_of([[0, 1] * 10, [0, 1] * 5]).split(0.2).with_validation(0.5).describe()
    assert (d.samples, d.test_samples, d.validation_samples) == (12, 6, 12)


def test_text_and_json_carry_the_numbers():
    d = data_of([[0, 0, 0, 1], [1, 1]]).describe()
    lines = dict(line.split("  ", 1) for line in str(d).splitlines())
    assert {k: v.strip() for k, v in lines.items()} == {
        "clients": "2",
        "training samples": "6",
        "per client": "mean 3.0, sd 1.0, min 2, max 4",
        "test samples": "0",
        "one sample": "2 float32",
        "classes": "2 (from the data)",
        "samples per class": "0: 3; 1: 3",
        "label skew": "0.375",
    }
    assert json.loads(json.dumps(d.to_dict()))["label_skew"] == pytest.approx(0.375)


def test_a_long_list_of_classes_is_cut():
    text = str(data_of([list(range(30))]).describe())
    assert "19: 1; and 10 more" in text
    assert "20: 1" not in text
