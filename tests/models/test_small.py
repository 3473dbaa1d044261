"""The small encoder: a model of timm's registry like others, and short-sighted."""

import pytest
import torch

from repgraph import recipes
from repgraph.data.scenes import Scenes
from repgraph.data.scenes.painting import INBOUND, SAND, SNOW
from repgraph.data.transforms import normalise
from repgraph.engine import tasks
from repgraph.errors import UsageError
from repgraph.models import Backbone, RGNet, load
from repgraph.models.small import SEES


def test_it_is_a_backbone():
    backbone = Backbone("repgraph_small", output_stride=4)
    assert backbone.channels == (24, 64) and backbone.multiple == 1
    for size in ((1, 1), (7, 13), (96, 128)):
        stage1, stage2 = backbone(torch.randn(2, 3, *size))
        assert stage1.shape[2:] == tuple(-(-side // 2) for side in size)
        assert stage2.shape[2:] == tuple(-(-side // 4) for side in size)


def test_it_has_one_output_stride():
    with pytest.raises(UsageError, match="output_stride is 8; timm's 'repgraph_small' supports 4"):
        Backbone("repgraph_small", output_stride=8)


def test_it_comes_back_from_a_folder(tmp_path):
    model = RGNet(8, "repgraph_small", output_stride=4, channels=16, auxiliary=False).eval()
    model.save_pretrained(tmp_path)
    x = torch.randn(1, 3, 33, 47)
    torch.testing.assert_close(load(tmp_path).eval()(x), model(x))


def test_it_sees_as_far_as_it_says():
    backbone = Backbone("repgraph_small", output_stride=4).eval()
    x = torch.randn(1, 3, 96, 96, requires_grad=True)
    backbone(x)[1][0, :, 12, 12].sum().backward()
    assert x.grad is not None
    rows, columns = x.grad[0].abs().sum(0).nonzero(as_tuple=True)
    assert int(rows.max() - rows.min()) + 1 == int(columns.max() - columns.min()) + 1 == SEES == 23


@pytest.mark.parametrize("name", ["baseline", "control", "rgnet"])
def test_only_nodes_can_see_what_decides_the_classes_of_scenes(name):
    """Swap all cues: without the layer, no logit of shore or boats changes, whatever the weights."""
    data = Scenes(None, "test", length=3)
    torch.manual_seed(0)
    model = tasks.of(recipes.get(f"scenes-{name}")).network(data.labels).eval()
    for index in range(3):
        what = data.scene(index)
        versions = (what, what.swapped(sky=True), what.swapped(lights=(0, 1, 2)))
        images = [data.draw(each)[0] for each in versions]
        with torch.no_grad():
            logits, other_sky, other_lights = model(normalise(torch.stack(images)))
        mask = data[index][1]
        shore, boats = (mask == SAND) | (mask == SNOW), mask >= INBOUND
        for other, decided in ((other_sky, shore), (other_lights, boats)):
            change = (logits - other).abs().amax(0)
            assert change[~decided].max() > 0.05  # where the cue is, it is seen
            if name == "rgnet":
                assert change[decided].max() > 0.01
            else:
                assert change[decided].max() < 1e-5
