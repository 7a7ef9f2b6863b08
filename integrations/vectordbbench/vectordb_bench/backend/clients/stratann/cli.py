"""`vectordbbench stratann`."""

from typing import Annotated, Unpack

import click

from ....cli.cli import CommonTypedDict, cli, click_parameter_decorators_from_typed_dict, run
from .. import DB


class StratannTypedDict(CommonTypedDict):
    path: Annotated[str, click.option("--path", type=str, default="stratann-bench", help="the folder for indexes", show_default=True)]
    preset: Annotated[str, click.option("--preset", type=str, default="stratann", help="the preset of stratann.build", show_default=True)]
    degree: Annotated[int, click.option("--degree", type=int, default=None, help="the degree of the graph")]
    build_list: Annotated[int, click.option("--build-list", type=int, default=100, help="the list size of the build", show_default=True)]
    memory: Annotated[str, click.option("--memory", type=str, default=None, help="the maximum memory of searches, such as 64MiB")]
    list_size: Annotated[int, click.option("--list-size", type=int, default=None, help="the list size of searches")]
    recall: Annotated[float, click.option("--recall", type=float, default=None, help="the target recall of searches")]


@cli.command()
@click_parameter_decorators_from_typed_dict(StratannTypedDict)
def Stratann(**parameters: Unpack[StratannTypedDict]) -> None:  # noqa: N802: commands are called as their databases
    from .config import StratannConfig, StratannIndexConfig

    names = ("preset", "degree", "build_list", "memory", "list_size", "recall")
    run(
        db=DB.Stratann,
        db_config=StratannConfig(db_label=parameters["db_label"], path=parameters["path"]),
        db_case_config=StratannIndexConfig(**{name: parameters[name] for name in names}),
        **parameters,
    )
