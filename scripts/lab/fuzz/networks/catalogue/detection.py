"""Operators of object detection, which compute with boxes and regions."""
from typing import Any

from .registry import entry, is_image, ranks, simple


def boxes(shape: Any) -> bool:
    """Take arrays of boxes."""
    return 2 <= len(shape) <= 4 and shape[-1] == 4


@entry('ROIPooling', 'contrib.ROIAlign', chance=0.6)
def _regions(drawing: Any) -> None:
    """Draw regions that are the same for each sample; each has the number of its sample."""
    value = drawing.pick(is_image)
    numbers = drawing.add('contrib.arange_like', 'F.reshape(F.contrib.arange_like({0}, axis=0), shape=(-1, 1))', value)
    corners = "F.concat(F.zeros((1, 2), dtype='float64'), F.ones((1, 2), dtype='float64'), dim=1)"
    rest = 'F.broadcast_like(%s, F.concat({0}, {0}, {0}, {0}, dim=1))' % corners
    rois = drawing.add('concat', 'F.concat({0}, %s, dim=1)' % rest, numbers)
    op = drawing.random.choice(('ROIPooling', 'contrib.ROIAlign'))
    drawing.add(op, 'F.%s({0}, {1}, pooled_size=(2, 2), spatial_scale=1.0)' % op, value, rois)


simple('contrib.box_iou', "F.contrib.box_iou({0}, {1}, format='center')", boxes, boxes, chance=0.4)


@entry('contrib.box_nms', 'contrib.box_non_maximum_suppression', chance=0.4)
def _nms(drawing: Any) -> None:
    value = drawing.pick(lambda shape: 2 <= len(shape) <= 4 and shape[-1] >= 6)
    drawing.add('contrib.box_nms', 'F.contrib.box_nms({0}, overlap_thresh=0.5, coord_start=2, score_index=1, '
                'id_index=0)', value)


simple('contrib.MultiBoxPrior', 'F.contrib.MultiBoxPrior({0}, sizes=(0.5, 0.25), ratios=(1, 2))', ranks(4),
       single=True)
simple('contrib.bipartite_matching', 'F.contrib.bipartite_matching(F.BlockGrad({0}), threshold=0.1)', ranks(2, 3),
       chance=0.2, outputs=2)


@entry('contrib.box_decode', chance=0.2)
def _decode(drawing: Any) -> None:
    value = drawing.pick(lambda shape: len(shape) == 3 and shape[2] == 4)
    anchors = drawing.param((1,) + drawing.shape(value)[1:])
    drawing.add('contrib.box_decode', 'F.contrib.box_decode(F.BlockGrad({0}), F.BlockGrad({1}))', value, anchors)



@entry('contrib.MultiBoxTarget', 'contrib.MultiBoxDetection', chance=0.3)
def _multi_box(drawing: Any) -> None:
    """Draw anchors that samples share, and labels or scores of each sample."""
    anchors = 'F.reshape(F.sigmoid({0}) / 2.0, shape=(1, -1, 4))'
    shared = drawing.add('boxes', anchors, drawing.param((3, 4)))
    if drawing.random.random() < 0.5:
        labels = drawing.pick(lambda shape: len(shape) == 3 and shape[2] == 5)
        count = drawing.shape(labels)[0]
        scores = drawing.pick(lambda shape: len(shape) == 3 and shape[0] == count and shape[2] == 3)
        drawing.add('contrib.MultiBoxTarget', 'F.contrib.MultiBoxTarget(F.BlockGrad({0}), F.BlockGrad('
                    'F.abs({1}) / 2.0), F.BlockGrad({2}))', shared, labels, scores, outputs=3)
    else:
        scores = drawing.pick(lambda shape: len(shape) == 3 and shape[2] == 3 and shape[1] > 1)
        count = drawing.shape(scores)[0]
        offsets = drawing.pick(lambda shape: shape == (count, 12))
        drawing.add('contrib.MultiBoxDetection', 'F.contrib.MultiBoxDetection(F.BlockGrad(F.softmax({0}, axis=1)), '
                    'F.BlockGrad({1}), F.BlockGrad({2}))', scores, offsets, shared)


@entry('contrib.box_encode', chance=0.2)
def _encode(drawing: Any) -> None:
    value = drawing.pick(lambda shape: len(shape) == 3 and shape[2] == 4)
    count, length, _ = drawing.shape(value)
    samples = drawing.pick(lambda shape: shape == (count, length))
    drawing.add('contrib.box_encode', 'F.contrib.box_encode(F.BlockGrad({1} > 0.0), F.BlockGrad(F.zeros_like({1})), '
                "F.BlockGrad({0}), F.BlockGrad({0}), F.zeros((4,), dtype='float64'), F.ones((4,), dtype='float64'))",
                value, samples, outputs=2)
