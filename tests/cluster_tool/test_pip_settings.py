"""What pip is set up with on a machine reaches uv and image builds unchanged."""

from pathlib import Path

from cluster import pip_settings

LISTING = """\
:env:.default-timeout='180'
:env:.find-links='{wheels} https://wheels.example/'
global.cert='{cert}'
global.default-timeout='15'
global.index-url='https://mirror.example/simple'
freeze.timeout='10'
"""


def options(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "ca.crt").touch()
    # The order pip prints in: sorted, so the environment comes first.
    return pip_settings.parse(LISTING.format(wheels=tmp_path / "wheels", cert=tmp_path / "ca.crt"))


def test_variables_win_over_files(tmp_path: Path) -> None:
    assert options(tmp_path)["default-timeout"] == "180"


def test_uv_gets_the_same_index_and_certificates(tmp_path: Path) -> None:
    environment = pip_settings.for_uv(options(tmp_path))
    assert environment["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert environment["SSL_CERT_FILE"] == str(tmp_path / "ca.crt")


def test_a_build_sees_every_local_path_it_is_pointed_to(tmp_path: Path) -> None:
    assert set(pip_settings.paths(options(tmp_path))) == {tmp_path / "wheels", tmp_path / "ca.crt"}


def test_the_file_says_what_the_options_say(tmp_path: Path) -> None:
    text = pip_settings.as_file(options(tmp_path))
    assert text.startswith("[global]\n")
    assert "\nindex-url = https://mirror.example/simple\n" in text


def test_nothing_configured_is_nothing_handed_on() -> None:
    assert pip_settings.parse("") == {}
    assert pip_settings.for_uv({}) == {}
