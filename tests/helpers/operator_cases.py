"""A small network around each operator that split networks know, with its inputs."""
import mxnet as mx

from . import operator_networks as networks
from .operator_networks import EDGES, IDS, MASKED, REALS, SINGLE, classes, definite, dense, single, threes

#: Functions that build a network, with the kinds and shapes of its inputs, and the dimensions that have the samples, if
#: not the first.
OPERATORS = {
    'attention': (networks.attention, [(SINGLE, (4, 4, 12)), (IDS, (4,))], (1, 0)),
    'attention between': (networks.attention_between, [(SINGLE, (3, 4, 4)), (SINGLE, (4, 4, 8))], (1, 1)),
    'attention by reshape': (networks.attention_by_reshape, [(REALS, (3, 4, 6)), (IDS, (3, 4, 4))]),
    'attention of one projection': (networks.attention_of_one_projection, [(REALS, (3, 4, 5))]),
    'attention of joint weights': (networks.attention_of_joint_weights, [(REALS, (4, 3, 5))], (1,)),
    'attention of two projections': (networks.projection_of_a_projection, [(REALS, (3, 4, 5))]),
    'attention weights': (networks.attention_weights, [(REALS, (3, 4, 6))]),
    'heads': (networks.heads, [(REALS, (4, 4, 4))]),
    'sequences': (networks.sequences, [(REALS, (4, 4, 3)), (IDS, (4,))], (1, 0)),
    'sequences of samples': (lambda x, n: mx.sym.SequenceLast(mx.sym.SequenceMask(
        mx.sym.tanh(x), n, use_sequence_length=True, axis=1), mx.sym.clip(n, 1, 4), use_sequence_length=True, axis=1),
        [(REALS, (4, 4, 3)), (IDS, (4,))]),
    'two inputs behind each other': (networks.two_inputs_behind_each_other, [(REALS, (5, 4)), (REALS, (5, 4))]),
    'dot': (lambda x: mx.sym.dot(mx.sym.dot(mx.sym.tanh(x), mx.sym.var('w', shape=(3, 4))), mx.sym.var(
        'v', shape=(5, 4)), transpose_b=True), [(REALS, (4, 3, 3))]),
    'dot of the first dimension': (lambda x: mx.sym.dot(mx.sym.var('w', shape=(4, 3)), mx.sym.dot(
        mx.sym.tanh(x), mx.sym.sin(x), transpose_a=True), transpose_a=True), [(REALS, (4, 4))]),
    'gemm': (lambda x: mx.sym.linalg.gemm(mx.sym.tanh(x), mx.sym.sin(x), mx.sym.cos(x), alpha=2.0, beta=0.5,
                                          transpose_a=True), [(REALS, (3, 4, 4))]),
    'gemm along another axis': (lambda x: mx.sym.linalg.gemm2(mx.sym.tanh(x), x, axis=0), [(REALS, (3, 3, 3))]),
    'sorted': (lambda x: mx.sym.topk(mx.sym.sort(mx.sym.tanh(x), axis=1), axis=-1, k=2, ret_typ='value'),
               [(REALS, (4, 3, 4))]),
    'reversed': (lambda x: mx.sym.reverse(mx.sym.flip(mx.sym.tanh(x), axis=0) * 2, axis=(1, 2)), [(REALS, (4, 4, 4))]),
    'repeated': (lambda x: mx.sym.tile(mx.sym.repeat(mx.sym.repeat(
        mx.sym.tanh(x), repeats=2, axis=0), repeats=3, axis=1), reps=(2, 1, 2)) * 2, [(REALS, (4, 2, 3))]),
    'repeated without an axis': (lambda x: mx.sym.repeat(mx.sym.tanh(x), repeats=2) * 2, [(REALS, (4, 2))]),
    'sliced': (lambda x: mx.sym.slice_like(mx.sym.slice(mx.sym.tanh(x), begin=(None, 1, None), end=(None, -1, None),
                                                        step=(1, 1, -2)) * 2, mx.sym.var('like', shape=(4, 2, 1)),
                                           axes=(2,)) * 2, [(REALS, (4, 5, 4))]),
    'six dimensions': (lambda x: mx.sym.Group([mx.sym.softmax(mx.sym.broadcast_mul(
        mx.sym.transpose(mx.sym.tanh(x), axes=(0, 2, 1, 5, 3, 4)), mx.sym.var('w', shape=(1, 3, 2, 2, 2, 2))), axis=2),
        mx.sym.slice_axis(mx.sym.reverse(x, axis=(1, 5)) * 2, axis=4, begin=0, end=1)]), [(REALS, (4, 2, 3, 2, 2, 2))]),
    'seven dimensions': (lambda x: mx.sym.sum(mx.sym.broadcast_mul(mx.sym.SwapAxis(
        mx.sym.tanh(x), dim1=1, dim2=6), mx.sym.var('w', shape=(1, 2, 3, 2, 1, 2, 2))), axis=5), [
            (REALS, (4, 2, 3, 2, 1, 2, 2))]),
    'some samples': (lambda x: mx.sym.slice(mx.sym.tanh(x), begin=(1,), end=(4,)) * 2, [(REALS, (5, 4))]),
    'slices of several lengths': (lambda x: mx.sym.Group([
        2 * one for one in mx.sym.split_v2(mx.sym.tanh(x), (1, 3), axis=1)]), [(REALS, (4, 5))]),
    'as large as another': (lambda x: mx.sym.broadcast_mul(mx.sym.broadcast_like(mx.sym.var('w', shape=(1, 4)), x) * 2,
                                                           mx.sym.broadcast_to(mx.sym.mean(x, axis=1, keepdims=True),
                                                                               shape=(0, 4))), [(REALS, (4, 4))]),
    'taken': (lambda x, at: mx.sym.broadcast_add(
        mx.sym.take(mx.sym.var('w', shape=(3, 7, 2)), at, axis=1).mean(axis=0), mx.sym.expand_dims(x, axis=1)),
        [(REALS, (4, 2)), (IDS, (4, 3))]),
    'taken of rows': (lambda x, at: mx.sym.BlockGrad(mx.sym.batch_take(
        mx.sym.tanh(x), mx.sym.cast(at, 'int32'))), [(REALS, (4, 7)), (IDS, (4,))]),
    'positions': (lambda x: mx.sym.broadcast_add(x, mx.sym.expand_dims(mx.sym.Embedding(mx.sym.contrib.arange_like(
        x, axis=1), input_dim=4, output_dim=3, name='embed'), axis=0)), [(REALS, (4, 4, 3))]),
    'norms and positions': (lambda x: mx.sym.Group([mx.sym.norm(x, axis=2), mx.sym.argmax(x, axis=1), mx.sym.moments(
        x, axes=(1,), keepdims=True)[1]]), [(REALS, (4, 4, 3))]),
    'chosen': (lambda x, y, n: mx.sym.where(n > 3, mx.sym.tanh(x), y) + mx.sym.where(x > 0, x, y * 2),
               [(REALS, (4, 3)), (REALS, (4, 3)), (IDS, (4,))]),
    'images side by side': (lambda x, y: mx.sym.UpSampling(
        mx.sym.tanh(x), y, scale=2, sample_type='nearest', num_args=2), [(REALS, (4, 2, 4, 4)), (REALS, (4, 3, 4, 4))]),
    'images by a weight': (lambda x: mx.sym.UpSampling(mx.sym.tanh(x), mx.sym.var('w', shape=(2, 1, 4, 4)), scale=2,
                                                       num_filter=2, sample_type='bilinear', num_args=2),
                           [(REALS, (4, 2, 3, 3))]),
    'images bent': (lambda x, theta: mx.sym.BilinearSampler(mx.sym.tanh(x), mx.sym.GridGenerator(
        theta, transform_type='affine', target_shape=(3, 3))), [(SINGLE, (4, 2, 4, 4)), (SINGLE, (4, 6))]),
    'transposed convolutions': (lambda x: mx.sym.Deconvolution(mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=4, kernel=(4, 3), stride=(2, 1), pad=(1, 1), no_bias=False, name='up'), num_filter=2,
        num_group=2, kernel=(3, 3), stride=(2, 2), pad=(1, 0), adj=(1, 0), dilate=(1, 2), name='groups'),
        [(REALS, (3, 2, 4, 3))]),
    'transposed convolutions with gaps': (lambda x: mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=2, kernel=(1, 2), stride=(3, 3), adj=(2, 2), no_bias=False, name='gaps'),
        [(REALS, (2, 2, 4, 3))]),
    'transposed convolutions of a size': (lambda x: mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=3, kernel=(5, 5), stride=(2, 3), target_shape=(9, 10), name='sized'),
        [(REALS, (2, 2, 4, 3))]),
    'transposed convolutions in one dimension': (lambda x: mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=3, kernel=(3,), stride=(2,), pad=(1,), adj=(1,), name='up'), [(REALS, (2, 2, 7))]),
    'transposed convolutions in three dimensions': (lambda x: mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=2, kernel=(2, 3, 2), stride=(2, 1, 2), pad=(0, 1, 0), name='up'),
        [(SINGLE, (2, 2, 3, 3, 2))]),
    'larger images': (lambda x: mx.sym.UpSampling(mx.sym.tanh(x), scale=3, sample_type='nearest') * 2,
                      [(REALS, (2, 3, 3, 4))]),
    'sums of larger images': (lambda x, y: mx.sym.UpSampling(
        mx.sym.tanh(x), y, scale=2, sample_type='nearest', num_args=2, multi_input_mode='sum'),
        [(REALS, (2, 3, 4, 4)), (REALS, (2, 3, 2, 2))]),
    'larger images by an odd factor': (lambda x: mx.sym.UpSampling(
        mx.sym.tanh(x), mx.sym.var('w', shape=(2, 1, 5, 5)), scale=3, num_filter=2, sample_type='bilinear', num_args=2),
        [(REALS, (2, 2, 4, 3))]),
    'images between others': (lambda x: mx.sym.Group([mx.sym.contrib.BilinearResize2D(
        mx.sym.tanh(x), height=height, width=width, align_corners=aligned) * 2
        for height, width, aligned in ((7, 9, True), (7, 9, False), (2, 3, True), (1, 8, False))]),
        [(REALS, (2, 3, 4, 5))]),
    'images as large as others': (lambda x, y: mx.sym.contrib.BilinearResize2D(
        mx.sym.tanh(x), mx.sym.Pooling(y, kernel=(2, 2), pool_type='avg'), mode='like') * 2,
        [(REALS, (2, 3, 3, 4)), (REALS, (2, 1, 6, 8))]),
    'averages of parts of images': (lambda x: mx.sym.Group([mx.sym.contrib.AdaptiveAvgPooling2D(
        mx.sym.tanh(x), output_size=size) * 2 for size in ((3, 4), (7, 2), (1, 1), (2, 2))]), [(REALS, (2, 3, 5, 6))]),
    'constant borders': (lambda x: mx.sym.Pad(mx.sym.Convolution(
        x, num_filter=3, kernel=(1, 1), name='conv'), mode='constant', constant_value=0.7,
        pad_width=(0, 0, 0, 0, 3, 1, 0, 2)) * 2, [(REALS, (2, 2, 3, 4))]),
    'borders of edges': (lambda x: mx.sym.Pad(mx.sym.tanh(x), mode='edge', pad_width=(0, 0, 0, 0, 3, 1, 0, 4)) * 2,
                         [(REALS, (2, 2, 3, 4))]),
    'reflected borders': (lambda x: mx.sym.Pad(mx.sym.tanh(x), mode='reflect', pad_width=(0, 0, 0, 0, 2, 2, 3, 1)) * 2,
                          [(REALS, (2, 2, 3, 4))]),
    'reflected borders in three dimensions': (lambda x: mx.sym.Pad(
        mx.sym.tanh(x), mode='reflect', pad_width=(0, 0, 0, 0, 1, 0, 2, 2, 1, 1)) * 2, [(REALS, (2, 2, 3, 3, 2))]),
    'largest of partial sums': (lambda x: mx.sym.Pooling(mx.sym.Convolution(
        -mx.sym.square(x) - 1, mx.sym.square(mx.sym.var('w', shape=(3, 4, 1, 1))), num_filter=3, kernel=(1, 1),
        no_bias=True), kernel=(3, 3), pad=(1, 1), pool_type='max') * 2, [(REALS, (2, 4, 3, 4))]),
    'cut images': (lambda x, y: mx.sym.Group([
        mx.sym.Crop(mx.sym.tanh(x), y, num_args=2, offset=(1, 2)) * 2, mx.sym.Crop(x, h_w=(3, 2), center_crop=True),
        mx.sym.Crop(x, y, num_args=2, center_crop=True) + y]), [(SINGLE, (2, 2, 6, 5)), (SINGLE, (2, 2, 4, 3))]),
    'neighbouring channels': (lambda x: mx.sym.LRN(mx.sym.tanh(x), nsize=3, alpha=0.5, beta=0.7, knorm=1.5) * 2,
                              [(SINGLE, (2, 6, 3, 2))]),
    'blocks of images': (lambda x: mx.sym.space_to_depth(mx.sym.depth_to_space(mx.sym.tanh(x), 2) * 2, 3),
                         [(REALS, (2, 4, 6, 3))]),
    'windows of images': (lambda x: mx.sym.col2im(mx.sym.im2col(
        mx.sym.tanh(x), kernel=(3, 2), stride=(1, 2), pad=(1, 1), dilate=(1, 2)) * 2, output_size=(5, 6), kernel=(3, 2),
        stride=(1, 2), pad=(1, 1), dilate=(1, 2)), [(REALS, (2, 3, 5, 6))]),
    'windows of images alone': (lambda x: mx.sym.im2col(mx.sym.tanh(x), kernel=(2, 3), stride=(2, 1), pad=(1, 0)) * 2,
                                [(REALS, (2, 3, 7, 5))]),
    'statistics of images': (lambda x: mx.sym.InstanceNorm(mx.sym.tanh(x), name='norm', eps=0.01),
                             [(SINGLE, (3, 4, 5, 3))]),
    'statistics of sequences': (lambda x: mx.sym.InstanceNorm(mx.sym.tanh(x), name='norm'), [(SINGLE, (3, 2, 7))]),
    'statistics of groups': (lambda x: mx.sym.GroupNorm(mx.sym.Convolution(
        x, num_filter=6, kernel=(2, 2), name='conv'), num_groups=3, name='norm', eps=0.01), [(REALS, (2, 2, 5, 4))]),
    'statistics of groups that are outputs': (lambda x: mx.sym.Group([one if at == 0 else mx.sym.BlockGrad(
        one) for at, one in enumerate(mx.sym.GroupNorm(mx.sym.tanh(x), num_groups=2, name='norm',
                                                       output_mean_var=True))]), [(REALS, (3, 4, 3, 2))]),
    'statistics beside epsilon': (lambda x: mx.sym.Group([mx.sym.BatchNorm(x / 30, fix_gamma=False, name='batch')] + [
        mx.sym.GroupNorm(x / 30, num_groups=2, name='group%d' % at, **options)
        for at, options in enumerate(({}, {'eps': 0.003}))]), [(REALS, (4, 4, 3, 2))]),
    'elements between others': (lambda x, y: mx.sym.BilinearSampler(mx.sym.tanh(x), mx.sym.tanh(y)),
                                [(REALS, (2, 3, 4, 5)), (REALS, (2, 2, 3, 6))]),
    'regions': (lambda x, at: mx.sym.Group([make(mx.sym.tanh(x), networks.regions(at)) * 2 for make in (
        lambda images, boxes: mx.sym.ROIPooling(images, boxes, pooled_size=(2, 3), spatial_scale=0.5),
        lambda images, boxes: mx.sym.contrib.ROIAlign(images, boxes, pooled_size=(2, 2), spatial_scale=0.7,
                                                      sample_ratio=2),
        lambda images, boxes: mx.sym.contrib.ROIAlign(images, boxes, pooled_size=(2, 2), spatial_scale=1.0,
                                                      position_sensitive=True, aligned=True))]),
        [(SINGLE, (3, 8, 6, 5)), (IDS, (3, 2, 5))]),
    'moved windows': (lambda x, offset: mx.sym.contrib.DeformableConvolution(
        mx.sym.tanh(x), mx.sym.tanh(offset), kernel=(2, 2), num_filter=3, name='conv'),
        [(SINGLE, (3, 2, 4, 5)), (SINGLE, (3, 8, 3, 4))]),
    'boxes of samples': (networks.boxes_of_samples, [(SINGLE, (3, 2, 3, 2)), (IDS, (3, 2, 5))]),
    'boxes that overlap': (lambda x: mx.sym.BlockGrad(mx.sym.contrib.box_nms(
        mx.sym.abs(x), overlap_thresh=0.3, coord_start=1, score_index=0, id_index=-1, topk=3)),
        [(EDGES, (2, 3, 5, 5))]),
    'overlaps of boxes': (lambda x, y: mx.sym.BlockGrad(mx.sym.contrib.box_iou(mx.sym.abs(x), mx.sym.abs(y))),
                          [(EDGES, (3, 2, 4)), (REALS, (3, 4))]),
    'boxes by anchors': (lambda x, y: mx.sym.Group([
        mx.sym.BlockGrad(one) for one in [mx.sym.contrib.box_decode(x, mx.sym.abs(mx.sym.slice_axis(
            y, axis=0, begin=0, end=1))), *networks.encoded(x, y)]]),
        [(SINGLE, (3, 4, 4)), (SINGLE, (3, 4, 4))]),
    'matches': (lambda x: mx.sym.Group([mx.sym.BlockGrad(one) for one in mx.sym.contrib.bipartite_matching(
        mx.sym.tanh(x), threshold=0.1)]), [(REALS, (3, 4, 2))]),
    'matrices': (lambda x: mx.sym.Group([mx.sym.linalg.det(x), *mx.sym.linalg.slogdet(x), mx.sym.linalg.inverse(
        definite(x)), mx.sym.linalg.potri(mx.sym.linalg.potrf(definite(x))), mx.sym.linalg.sumlogdiag(definite(x)),
        mx.sym.linalg.trmm(x, mx.sym.sin(x), transpose=True), mx.sym.linalg.trsm(definite(x), x, rightside=True)]),
        [(REALS, (3, 2, 3, 3))]),
    'parts of matrices': (lambda x: mx.sym.Group([
        mx.sym.linalg.makediag(mx.sym.linalg.extractdiag(mx.sym.tanh(x), offset=1) * 2, offset=-1),
        mx.sym.linalg.maketrian(mx.sym.linalg.extracttrian(mx.sym.tanh(x), lower=False) * 2)]),
        [(REALS, (3, 2, 4, 4))]),
    'elements by number': (lambda x, at: mx.sym.gather_nd(mx.sym.tanh(x), mx.sym.concat(
        mx.sym.reshape(mx.sym.repeat(mx.sym.contrib.arange_like(at, axis=0), repeats=2), shape=(1, -1)),
        mx.sym.reshape(mx.sym.clip(at, 0, 4), shape=(1, -1)), dim=0)) * 2, [(REALS, (4, 5, 3)), (IDS, (4, 2))]),
    'elements of all samples': (lambda x, at: mx.sym.gather_nd(
        mx.sym.transpose(mx.sym.tanh(x)), mx.sym.clip(mx.sym.transpose(at), 0, 4)) * 2,
        [(REALS, (4, 5)), (IDS, (3, 1))], (0, None)),
    'elements to numbers': (lambda x, at: mx.sym.scatter_nd(
        mx.sym.tanh(x), mx.sym.expand_dims(mx.sym.argsort(at + mx.sym.contrib.arange_like(at) / 9), axis=0),
        shape=(7, 3, 2)) * 2, [(REALS, (5, 3, 2)), (IDS, (5,))]),
    'rows by number': (lambda x, y, at: mx.sym.contrib.index_copy(mx.sym.tanh(x), mx.sym.cast(mx.sym.argsort(
        at), 'int32'), mx.sym.sin(y)) * 2, [(REALS, (7, 3, 2)), (REALS, (4, 3, 2)), (IDS, (4,))],
        (1, 1, None)),
    'a sum of losses': (lambda x, at: mx.sym.softmax_cross_entropy(mx.sym.tanh(x), at) * 2,
                        [(REALS, (5, 3)), (classes, (5,))]),
    'straight through': (lambda x: mx.sym.Group([mx.sym.contrib.round_ste(x * 3), mx.sym.contrib.sign_ste(
        x), mx.sym.contrib.gradientmultiplier(mx.sym.tanh(x), scalar=-2.0), mx.sym.contrib.quadratic(
            x, a=2.0, b=1.0, c=0.5)]), [(EDGES, (4, 3))]),
    'order of ties': (lambda x: mx.sym.Group([
        mx.sym.sort(x, axis=0, is_ascend=False), mx.sym.topk(x, axis=1, k=2, ret_typ='value', is_ascend=True),
        *[mx.sym.BlockGrad(one) for one in (
            mx.sym.argsort(x, axis=-2, is_ascend=False), mx.sym.topk(x, axis=-1, k=2, ret_typ='mask'),
            mx.sym.topk(x, axis=0, k=2, dtype='float64'), *mx.sym.topk(x, axis=1, k=2, ret_typ='both'),
            mx.sym.argmax(x, axis=-1, keepdims=True), mx.sym.argmin(x, axis=0), mx.sym.argmax(x))]]),
        [(EDGES, (4, 5, 3))]),
    'order of all': (lambda x: mx.sym.Group([mx.sym.sort(x, axis=None), mx.sym.cumsum(mx.sym.tanh(x)), mx.sym.BlockGrad(
        mx.sym.argsort(x, axis=None)), mx.sym.topk(x, axis=None, k=3, ret_typ='value')]), [(EDGES, (4, 3))]),
    'norms at zeros': (lambda x: mx.sym.Group([
        mx.sym.norm(x, ord=1, axis=(0, 2), keepdims=True), mx.sym.norm(x + 2, axis=-1), mx.sym.norm(x + 2, ord=2),
        *[mx.sym.L2Normalization(x, mode=mode, eps=0.1) for mode in ('instance', 'channel', 'spatial')]]),
        [(EDGES, (4, 5, 3))]),
    'sequences of letters': (lambda x, at, n: mx.sym.Group([
        mx.sym.CTCLoss(x, single(mx.sym.clip(at, 1, 3))),
        mx.sym.CTCLoss(x, *map(single, (mx.sym.clip(at, 0, 2), mx.sym.clip(n, 4, 6), mx.sym.clip(n, 1, 2))),
                       use_data_lengths=True, use_label_lengths=True, blank_label='last')]),
        [(SINGLE, (6, 3, 4)), (IDS, (3, 2)), (IDS, (3,))], (1, 0, 0)),
    'softmax outputs of other layouts': (lambda x, at, of: mx.sym.Group([
        mx.sym.SoftmaxOutput(mx.sym.tanh(x), at, multi_output=True, use_ignore=True, ignore_label=1),
        mx.sym.SoftmaxOutput(mx.sym.tanh(x), of, preserve_shape=True, out_grad=True, grad_scale=0.5)]),
        [(REALS, (4, 3, 5)), (classes, (4, 5)), (classes, (4, 3))]),
    'taken from behind': (lambda x, at: mx.sym.Group([
        mx.sym.take(mx.sym.tanh(x), at - 9, axis=-1, mode='wrap') * 2, mx.sym.take(mx.sym.tanh(x), at, axis=1) * 2]),
        [(REALS, (4, 3, 5)), (IDS, (2,))], (0, None)),
    'shapes of arrays': (lambda x: mx.sym.broadcast_div(mx.sym.tanh(x), mx.sym.cast(
        mx.sym.slice_axis(mx.sym.shape_array(x * 2), axis=0, begin=0, end=1) + mx.sym.size_array(x), dtype='float64')),
        [(REALS, (4, 3))]),
    'images of other sizes': (lambda x: mx.sym.depth_to_space(mx.sym.contrib.AdaptiveAvgPooling2D(mx.sym.tanh(
        x), output_size=2), 2) * 2, [(REALS, (4, 4, 4, 4))]),
    'softmin': (lambda x: mx.sym.softmin(mx.sym.tanh(x), axis=1) * 2, [(REALS, (4, 4, 3))]),
    'softmax of channels': (lambda x: mx.sym.SoftmaxActivation(x, mode='channel') * mx.sym.SoftmaxActivation(x),
                            [(SINGLE, (4, 4, 3))]),
    'a product of samples': (lambda x: mx.sym.broadcast_add(mx.sym.tanh(x), mx.sym.transpose(x)), [(REALS, (4, 4))]),
    'statistics of a norm': (lambda x: mx.sym.Group([one if at == 0 else mx.sym.BlockGrad(one) for at, one in enumerate(
        mx.sym.LayerNorm(x, axis=-1, output_mean_var=True, name='norm'))]), [(REALS, (4, 3, 5))]),
    'language model': (networks.language_model, [(IDS, (5, 3)), (IDS, (5, 3))]),
    'softmax along any axis': (lambda x: mx.sym.softmax(x * 3, axis=1, temperature=2.0), [(REALS, (3, 5, 4))]),
    'softmax in float32': (lambda x: mx.sym.Group([
        mx.sym.softmax(x * 3, axis=1, temperature=2.0), mx.sym.log_softmax(mx.sym.tanh(x), axis=-1),
        mx.sym.softmax(mx.sym.log_softmax(x, axis=0), axis=1) * 2]), [(SINGLE, (3, 5, 4))]),
    'softmax of masked rows in float32': (lambda x, y: mx.sym.softmax(mx.sym.cast(x, dtype='float32') + y, axis=1),
                                          [(MASKED, (4, 8)), (SINGLE, (4, 8))]),
    'embedding': (lambda x: mx.sym.Embedding(x, input_dim=7, output_dim=5, name='embed'), [(IDS, (5, 3))]),
    'ids of activations': (lambda x: mx.sym.Embedding(mx.sym.clip(mx.sym.floor(mx.sym.abs(x) * 3), 0, 4), input_dim=5,
                                                      output_dim=3, name='embed'), [(REALS, (5, 3))]),
    'pick': (lambda x, at: mx.sym.pick(x, at, axis=1), [(REALS, (5, 4, 3)), (IDS, (5, 3))]),
    'one hot': (lambda at: mx.sym.one_hot(at, depth=7, dtype='float64') * mx.sym.var('scale', shape=(1,)).reshape(
        (1, 1, 1)).broadcast_to((5, 3, 7)), [(IDS, (5, 3))]),
    'shapes': (lambda x: mx.sym.reshape(mx.sym.expand_dims(mx.sym.reshape(mx.sym.tanh(x), shape=(-1, 6)), axis=1),
                                        shape=(4, 2, 2, 6)) * 2, [(REALS, (4, 4, 3, 2))]),
    'squeeze and flatten': (lambda x: mx.sym.Flatten(mx.sym.squeeze(mx.sym.tanh(x), axis=1)), [(REALS, (5, 1, 3, 2))]),
    'casts of AMP': (lambda x: mx.sym.cast(mx.sym.elemwise_add(*mx.sym.amp_multicast(
        mx.sym.tanh(mx.sym.amp_cast(mx.sym.cast(x, dtype='float32'), dtype='float32')), mx.sym.cast(x, dtype='float32'),
        num_outputs=2)), dtype='float64'), [(SINGLE, (4, 3))]),
    'slices': (lambda x: mx.sym.concat(*[part * weight for weight, part in enumerate(mx.sym.SliceChannel(
        mx.sym.slice_axis(mx.sym.tanh(x), axis=1, begin=1, end=5), num_outputs=2, axis=1))], dim=2),
        [(REALS, (4, 6, 3))]),
    'squeezed slices': (lambda x: mx.sym.stack(*reversed(list(mx.sym.SliceChannel(
        mx.sym.sin(x), num_outputs=3, axis=1, squeeze_axis=True))), axis=-1), [(REALS, (4, 3, 5))]),
    'transpose': (lambda x: mx.sym.transpose(mx.sym.transpose(mx.sym.sin(x), axes=(0, 2, 1)) * 2, axes=(0, 2, 1)),
                  [(REALS, (4, 3, 5))]),
    'sums': (lambda x: mx.sym.broadcast_add(mx.sym.sum(x, axis=1, keepdims=True), mx.sym.max(x, axis=2, keepdims=True)),
             [(REALS, (4, 3, 5))]),
    'softmax of masked rows': (lambda x: mx.sym.softmax(x, axis=1), [(MASKED, (4, 8))]),
    'log of softmax of masked rows': (lambda x: mx.sym.clip(mx.sym.log_softmax(x, axis=1), -50, 50),
                                      [(MASKED, (4, 8))]),
    'pick beside infinities': (lambda x, at: mx.sym.pick(mx.sym.transpose(x) * 2, at, axis=1),
                               [(networks.infinite_but_in_the_middle, (7, 7)), (threes, (7,))]),
    'embedding beside infinities': (lambda at, table: mx.sym.Embedding(
        at, table * 2, input_dim=7, output_dim=5, name='embed'),
        [(threes, (7, 3)), (networks.infinite_but_in_the_middle, (7, 5))]),
    'learned slopes at zeros': (lambda x: mx.sym.LeakyReLU(x, act_type='prelu', name='prelu'), [(EDGES, (4, 3, 2, 2))]),
    'activations at zeros': (lambda x: mx.sym.Group([
        mx.sym.relu(x), mx.sym.Activation(x, act_type='relu'), mx.sym.abs(x), mx.sym.sign(x),
        mx.sym.LeakyReLU(x, act_type='leaky'), mx.sym.LeakyReLU(x, act_type='elu'), mx.sym.maximum(x, 0),
        mx.sym.broadcast_maximum(x, mx.sym.zeros_like(x)), mx.sym.smooth_l1(x)]), [(EDGES, (4, 5))]),
    'clipped at zeros': (lambda x: mx.sym.clip(x, 0, 0.5), [(EDGES, (4, 5))]),
    'ties of largest elements': (lambda x: mx.sym.Group([
        mx.sym.max(x, axis=1), mx.sym.min(x, axis=1), mx.sym.prod(x, axis=1),
        mx.sym.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type='max')]), [(EDGES, (4, 3, 6, 6))]),
    'many readers': (lambda x: networks.read_by_many(mx.sym.tanh(x)), [(REALS, (4, 5))]),
    'many readers of data': (networks.read_by_many, [(REALS, (4, 5))]),
    'many readers that are several operators': (lambda x: mx.sym.Group([mx.sym.clip(x, 0, 0.5)] + [
        mx.sym.LeakyReLU(x, act_type='prelu', name='prelu%d' % at) for at in range(5)]), [(REALS, (4, 5))]),
    'many readers of a weight': (lambda x: mx.sym.Group([mx.sym.broadcast_mul(x, one) for one in networks.read_by_many(
        mx.sym.var('scale', shape=(1, 5)))]), [(REALS, (4, 5))]),
    'loss of a mean': (lambda x: mx.sym.make_loss(mx.sym.mean(mx.sym.square(dense(x)))), [(REALS, (5, 4))]),
    'loss of a sum': (lambda x: mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(dense(x))), grad_scale=0.5),
                      [(REALS, (5, 4))]),
    'losses of samples': (lambda x: mx.sym.Group([mx.sym.MakeLoss(
        mx.sym.relu(mx.sym.sum(dense(x), axis=1)), normalization=norm, valid_thresh=0.1)
        for norm in ('null', 'batch', 'valid')]), [(REALS, (5, 4))]),
    'softmax output': (lambda x, at: mx.sym.Group([mx.sym.SoftmaxOutput(
        dense(x), at, normalization=norm, use_ignore=True, ignore_label=2, smooth_alpha=0.1)
        for norm in ('null', 'batch', 'valid')]), [(REALS, (5, 4)), (classes, (5,))]),
    'regression outputs': (lambda x, at: mx.sym.Group([make(dense(x), at, grad_scale=0.7) for make in (
        mx.sym.LinearRegressionOutput, mx.sym.LogisticRegressionOutput, mx.sym.MAERegressionOutput)]),
        [(REALS, (5, 4)), (classes, (5, 3))]),
    'margins': (lambda x, at: mx.sym.SVMOutput(dense(x), at),
                [(REALS, (5, 4)), (classes, (5,))]),
    'learned slopes': (lambda x: mx.sym.LeakyReLU(x, act_type='prelu', name='prelu'), [(REALS, (4, 3, 2, 2))]),
    'norms': (lambda x: mx.sym.L2Normalization(mx.sym.Convolution(
        x, num_filter=4, kernel=(3, 3), name='conv'), mode='channel'), [(REALS, (4, 2, 5, 5))]),
    'products': (lambda x: mx.sym.linalg.gemm2(
        mx.sym.cumsum(mx.sym.contrib.div_sqrt_dim(x), axis=1), mx.sym.tanh(x), transpose_b=True), [(REALS, (5, 6))]),
    'no rule': (lambda x: mx.sym.tanh(mx.sym.diag(mx.sym.Convolution(
        x, num_filter=4, kernel=(3, 3), name='conv'), axis1=2, axis2=3)) * 2, [(REALS, (4, 2, 5, 5))]),
    'no rule, of modules': (lambda x: mx.sym.linalg.syrk(mx.sym.tanh(x)) * 2, [(REALS, (5, 6))]),
    'samples only': (lambda x: mx.sym.UpSampling(mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=3, kernel=(2, 2), stride=(2, 2), name='up'), scale=2, sample_type='nearest'),
        [(REALS, (4, 2, 3, 3))]),
    'weights by way of operators': (lambda x: mx.sym.FullyConnected(
        x, mx.sym.var('a', shape=(4, 6)) * mx.sym.var('b', shape=(4, 6)), num_hidden=4, no_bias=True),
        [(REALS, (5, 6))]),
    'a part of a weight': (lambda x: mx.sym.broadcast_mul(x, mx.sym.slice(
        mx.sym.var('w', shape=(3, 9)), begin=(1, 2), end=(2, 8))), [(REALS, (5, 6))]),
    'a weight twice': (lambda x: mx.sym.FullyConnected(mx.sym.FullyConnected(
        x, mx.sym.var('w', shape=(6, 6)), num_hidden=6, no_bias=True), mx.sym.var('w', shape=(6, 6)), num_hidden=6,
        no_bias=True), [(REALS, (5, 6))]),
    'several outputs': (lambda x: mx.sym.Group([mx.sym.sin(x), mx.sym.sum(x, axis=1), mx.sym.sum(x)]),
                        [(REALS, (5, 6))]),
    'images in one dimension': (lambda x: mx.sym.Pooling(mx.sym.Convolution(
        x, num_filter=4, kernel=(3,), pad=(1,), dilate=(2,), name='conv'), kernel=(2,), stride=(2,)),
        [(REALS, (4, 3, 9))]),
    'images in three dimensions': (lambda x: mx.sym.Convolution(
        x, num_filter=2, kernel=(2, 3, 2), stride=(2, 1, 1), pad=(1, 1, 0), name='conv'), [(REALS, (3, 2, 4, 5, 4))]),
    'no more samples than one': (lambda x: mx.sym.FullyConnected(mx.sym.Convolution(
        x, num_filter=3, kernel=(3, 3), pad=(1, 1), name='conv'), num_hidden=5, name='dense'), [(REALS, (1, 2, 6, 6))]),
}
