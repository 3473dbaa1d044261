"""A small network on the embedded scenes, with the RepGraph layer and without it: minutes on the CPU."""

from repgraph.recipes.recipe import Context, Data, Model, Optim, Recipe, Test, Train

SIZE = (96, 96)


def _recipe(name: str, title: str, context: Context) -> Recipe:
    return Recipe(
        name=name,
        data=Data("scenes", crop=SIZE, scales=(1.0,), workers=0),
        model=Model(backbone="resnet10t", weights="none", context=context, channels=64, auxiliary=False, dropout=0.0),
        optim=Optim(lr=0.05, weight_decay=1e-4),
        train=Train(batch=16, iterations=400, period=100, precision="fp32", norm="local"),
        test=Test(crop=SIZE),
        description=f"{title}, small, on the embedded scenes.\n  repgraph train {name} --out runs/{name}",
    )


RECIPES = (
    _recipe("scenes-baseline", "The backbone baseline", "none"),
    _recipe("scenes-rgnet", "RGNet", "repgraph"),
)
