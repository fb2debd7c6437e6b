"""Workaround: `app_fedsm.provisioning.certificates`.

Symptom: a year after `nvflare provision` nobody can connect any more: `root_valid_days` makes the root last, but the
certificates of server, sites and users end after 360 days. FLARE 2.9.0.
With the workaround: `tests/app/test_provision.py`.
"""

import inspect

from nvflare.lighter.impl.cert import CertBuilder


def test_flares_builder_has_no_setting_for_the_participants_certificates():
    assert list(inspect.signature(CertBuilder).parameters) == ["root_valid_days"]
    assert inspect.signature(CertBuilder._generate_cert).parameters["valid_days"].default == 360
