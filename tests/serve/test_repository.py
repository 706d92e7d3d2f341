"""Repositories of models: versions, changes while a service runs, and access rights."""

import asyncio
import gc
import json
import weakref

import numpy as np
import pytest
from multidict import CIMultiDict
from tritonclient.utils import InferenceServerException

import flowmx as mx
from flowmx.serve import Access, Repository
from flowmx.serve.replies import Refusal
from flowmx.serve.service import Service
from tests.serve.test_http import JSON, carried, doubling  # noqa: F401 (a fixture)
from tests.serve.test_open_inference import Triton, tensor

ADMIN, USER = "the token of the admins", "the token of users"
ROW = np.ones((1, 2), np.float32)


def write(factor, folder):
    """Write a network that multiplies by a number."""
    folder.mkdir(parents=True, exist_ok=True)
    net = mx.gluon.nn.Dense(2, use_bias=False, in_units=2)
    net.initialize(mx.init.Constant(factor / 2))
    net.hybridize()
    net(mx.nd.ones((1, 2)))
    net.export(str(folder / "net"))


async def times(factor, folder):
    """Write a network on another thread, because writing waits for its parameters."""
    await asyncio.to_thread(write, factor, folder)


@pytest.fixture
def folder(tmp_path):
    """Create a repository with one model with versions and one without."""
    write(2, tmp_path / "digits" / "1")
    (tmp_path / "digits" / "model.toml").write_text("shape = [2]\nmax_batch = 2\n")
    write(5, tmp_path / "plain")
    (tmp_path / "plain" / "model.toml").write_text("shape = {data = [2]}\n")
    return tmp_path


def served(folder):
    return Triton(Repository(folder), access=Access(admin_token=ADMIN))


def headers(token=ADMIN):
    return {"Authorization": f"Bearer {token}"}


async def loaded(client):
    async def states():
        return await client.get_model_repository_index(headers=headers())

    while any(each["state"] != "READY" and each["reason"] in ("", "unloaded") for each in await states()):
        pass
    return {each["name"]: each for each in await states()}


async def answer(client, name, version=""):
    actual = await client.infer(name, [tensor("data", ROW)], model_version=version)
    return float(actual.as_numpy(actual.get_response()["outputs"][0]["name"])[0, 0]), actual.get_response()[
        "model_version"
    ]


async def test_models_of_a_folder_are_served(folder):
    async with served(folder) as client:
        assert set(await loaded(client)) == {"digits", "plain"}
        assert await client.is_server_ready()
        assert await answer(client, "digits") == (2, "1")
        assert await answer(client, "plain") == (5, "1")


async def test_a_new_version_takes_over(folder):
    async with served(folder) as client:
        await loaded(client)
        await times(3, folder / "digits" / "2")
        assert await answer(client, "digits") == (2, "1")
        await client.load_model("digits", headers=headers())
        assert await answer(client, "digits") == (3, "2")
        with pytest.raises(InferenceServerException, match="no version '1' of digits, expected one of 2"):
            await answer(client, "digits", "1")


async def test_no_request_is_lost_while_versions_take_over(folder, carried):  # noqa: F811
    repository = Repository(folder)
    async with carried(repository) as ask:
        await repository.load("digits")
        results = []

        async def client():
            while not done:
                status, _, body = await ask("POST", "/models/digits/predict", b"[1, 1]", Content_Type=JSON)
                results.append((status, body))

        done = False
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(client())
            for version in range(2, 6):
                await times(version + 1, folder / "digits" / str(version))
                await repository.load("digits")
            done = True
    assert {status for status, _ in results} == {200}, results[-5:]
    assert json.loads(results[-1][1])["outputs"] == [6, 6]


async def test_a_request_that_began_before_a_version_took_over_is_answered_by_it(folder):
    repository = Repository(folder)
    await repository.load("digits")
    call, other = (Service(repository).begin("POST", "/predict", {"content-type": JSON}) for _ in range(2))
    await times(3, folder / "digits" / "2")
    await repository.load("digits")
    assert json.loads((await call.reply(b"[1, 1]")).body) == {"outputs": [3, 3]}
    await repository.unload("digits")
    assert (await other.reply(b"[1, 1]")).status == 404


async def test_models_loaded_during_shutdown_are_unloaded(folder):
    repository = Repository(folder)
    loading = asyncio.create_task(repository.load("plain"))
    await asyncio.sleep(0)
    await repository.close()
    await loading
    with pytest.raises(Refusal, match="the service is shutting down"):
        await repository.load("digits")
    await repository.models.drain()


async def test_a_service_of_a_folder_starts_again(folder):
    service = Service(Repository(folder))
    for factor in (2, 3):
        service.start()
        await service._loading
        answers = await service.models.find("digits")(ROW[0])
        assert answers[0] == factor and service.models.find("plain").is_ready
        await service.drain()
        assert not service.models.find("digits").is_ready
        await times(3, folder / "digits" / "2")


async def test_versions_with_leading_zeros_are_not_served_and_the_reason_is_given(folder, caplog):
    await times(7, folder / "digits" / "002")
    await times(7, folder / "padded" / "001")
    async with served(folder) as client:
        states = await loaded(client)
        assert "expected versions without leading zeros" in states["padded"]["reason"]
        assert "rename the folders" in states["padded"]["reason"]
        assert await answer(client, "digits") == (2, "1")
    assert "digits has 002" in caplog.text


async def test_several_versions_are_served_at_once(folder):
    await times(3, folder / "digits" / "2")
    await times(4, folder / "digits" / "10")
    (folder / "digits" / "model.toml").write_text("shape = [2]\nversions = 2\n")
    async with served(folder) as client:
        await loaded(client)
        assert await answer(client, "digits") == (4, "10")
        assert await answer(client, "digits", "2") == (3, "2")
        assert (await client.get_model_metadata("digits"))["versions"] == ["2", "10"]


async def test_files_that_changed_are_read_again_and_others_are_not(folder):
    repository = Repository(folder)
    await repository.load("plain")
    first = repository.models.find("plain")
    await repository.load("plain")
    assert repository.models.find("plain") is first
    await times(7, folder / "plain")
    await repository.load("plain")
    assert (await repository.models.find("plain")([1, 1])).tolist() == [7, 7]
    assert not first.is_ready
    await repository.unload("plain")


async def test_a_model_that_cannot_be_loaded_is_named_and_the_old_one_stays(folder):
    async with served(folder) as client:
        await loaded(client)
        (folder / "digits" / "2").mkdir()
        (folder / "digits" / "2" / "net-symbol.json").write_text("{}")
        with pytest.raises(InferenceServerException, match=r"400.*digits cannot be loaded"):
            await client.load_model("digits", headers=headers())
        assert await answer(client, "digits") == (2, "1")
        await times(3, folder / "digits" / "2")
        await client.load_model("digits", headers=headers())
        assert await answer(client, "digits") == (3, "2")


@pytest.mark.parametrize(
    ("text", "message"),
    [("shape = [2", "is not TOML"), ("size = 2", "has size, expected some of shape"),
     ("shape = [0]", "expected sizes"), ("versions = 0", "the number of newest")],
)  # fmt: skip
async def test_wrong_options_keep_the_service_from_being_ready_and_say_why(folder, text, message):
    (folder / "digits" / "model.toml").write_text(text)
    async with served(folder) as client:
        actual = await loaded(client)
        assert message in actual["digits"]["reason"]
        assert await answer(client, "plain") == (5, "1")
        assert not await client.is_server_ready()


async def test_an_unloaded_model_is_freed_without_garbage_collection(folder):
    repository = Repository(folder)
    gc.disable()
    try:
        for _ in range(2):
            await repository.load("plain")
            call = Service(repository).begin("POST", "/v2/models/plain/infer", {"content-type": JSON})
            body = {"inputs": [{"name": "data", "datatype": "FP32", "shape": [1, 2], "data": [1, 1]}]}
            assert (await call.reply(json.dumps(body).encode())).status == 200
            predictor = repository.models.find("plain")
            references = [weakref.ref(each) for each in (predictor, predictor._runner.model)]
            del call, predictor
            await repository.unload("plain")
            async with asyncio.timeout(20):  # the thread that computed the batch may still be on its way out
                while any(each() is not None for each in references):
                    await asyncio.sleep(0)
    finally:
        gc.enable()


async def test_a_model_is_unloaded(folder):
    async with served(folder) as client:
        await loaded(client)
        await client.unload_model("plain", headers=headers())
        with pytest.raises(InferenceServerException, match=r"404.*no model 'plain', expected one of digits"):
            await answer(client, "plain")
        assert await client.is_server_ready()
        with pytest.raises(
            InferenceServerException, match=r"404.*no model 'none' in the folder, expected one of digits"
        ):
            await client.load_model("none", headers=headers())


async def test_only_admins_change_what_is_served(folder):
    async with Triton(Repository(folder), access=Access(USER, ADMIN)) as client:
        with pytest.raises(InferenceServerException, match=r"401.*an admin's token"):
            await client.load_model("plain", headers=headers(USER))
        with pytest.raises(InferenceServerException, match=r"401.*expected a token"):
            await answer(client, "plain")
        assert await client.is_server_live()
        assert set(await loaded(client)) == {"digits", "plain"}
        assert await client.is_model_ready("plain", headers=headers(USER))


async def test_users_show_their_token(carried):  # noqa: F811
    predictor = doubling()
    async with carried(predictor, access=Access(USER)) as ask:
        await predictor.ready()
        status, actual, _ = await ask("POST", "/predict", b"[1, 2]", Content_Type=JSON)
        assert (status, CIMultiDict(actual)["WWW-Authenticate"]) == (401, "Bearer")
        for wrong in ("Bearer another token", USER, f"Basic {USER}", "Bearer é"):
            assert (await ask("POST", "/predict", b"[1, 2]", Content_Type=JSON, Authorization=wrong))[0] == 401
        right = f"Bearer {USER}"
        assert (await ask("POST", "/predict", b"[1, 2]", Content_Type=JSON, Authorization=right))[0] == 200
        assert (await ask("GET", "/metrics", Authorization=right))[0] == 200
        assert (await ask("GET", "/metrics"))[0] == 401
        assert (await ask("GET", "/readyz"))[0] == 200
        status, _, text = await ask("POST", "/v2/repository/models/model/load", Authorization=right)
        assert status == 403
        assert "without an admin token" in json.loads(text)["error"]


async def test_a_service_without_a_repository_keeps_its_models(carried):  # noqa: F811
    async with carried(doubling(), access=Access(admin_token=ADMIN)) as ask:
        status, _, text = await ask("POST", "/v2/repository/models/model/load", Authorization=f"Bearer {ADMIN}")
        assert status == 400
        assert "was started without a repository" in json.loads(text)["error"]


def test_token_files_must_not_be_world_readable(tmp_path):
    path = tmp_path / "token"
    path.write_text(f" {USER}\n")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="every user of this machine may read"):
        Access.from_files(str(path))
    path.chmod(0o600)
    Access.from_files(str(path)).check("users", {"authorization": f"bearer {USER}"})
    with pytest.raises(Refusal, match="expected a token"):
        Access(USER).check("users", {"authorization": "Bearer \udcff"})  # a byte that is no text
    with pytest.raises(ValueError, match="3 characters, expected at least 16"):
        Access("abc")


def test_a_repository_is_a_folder(tmp_path):
    with pytest.raises(NotADirectoryError, match="expected one with a folder per model"):
        Repository(tmp_path / "none")


async def test_the_document_has_the_shapes_of_the_models(carried):  # noqa: F811
    predictor = doubling()
    async with carried(predictor) as ask:
        await predictor.ready()
        document = json.loads((await ask("GET", "/openapi.json"))[2])
        body = document["paths"]["/models/model/predict"]["post"]["requestBody"]["content"][JSON]["schema"]
        row = body["properties"]["inputs"]["items"]
        assert (row["minItems"], row["maxItems"], row["items"]) == (2, 2, {"type": "number"})
        assert document["paths"]["/v2/models/model/infer"]["post"]["responses"]["200"]["content"]
        assert document["paths"]["/readyz"]["get"]["security"] == []
        status, named, page = await ask("GET", "/docs")
        assert (status, named["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b"float32 (2,)" in page
