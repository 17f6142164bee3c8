"""Networks of packages that use Gluon: small ones, with the shapes of their inputs, and a plan for each."""
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

from mxhybrid.parallel import by_name, grid

from .translation import GluonNlpTransformer, Sockeye


class Client(NamedTuple):
    """A network of a package."""

    build: Callable[[], Any]
    #: The shape of each input, for four samples.
    shapes: List[Tuple[int, ...]]
    #: The plan besides data parallelism.
    plan: Any
    dtype: str = 'float32'
    batch_axis: int = 0
    #: The bound of each input's ids and lengths; 0 for real numbers.
    limits: Tuple[int, ...] = (0,)
    learning_rate: float = 1e-3
    #: The class of the initializer, whose arguments are the defaults.
    initializer: str = 'Xavier'
    #: Patterns of operators that mix samples, and are computed for the joint batch by every plan.
    mixing: Tuple[str, ...] = ()
    #: Patterns of operators that the other plan cannot split.
    unsplit: Tuple[str, ...] = ()
    #: Patterns of weights of which `megatron` gives each worker all; None for networks that it does not split.
    whole_weights: Optional[Tuple[str, ...]] = None

    @property
    def data(self) -> Any:
        """The shapes as `parallelize` takes them: one input has no list."""
        return self.shapes if len(self.shapes) > 1 else self.shapes[0]


def _vision(name: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        from gluoncv import model_zoo
        return model_zoo.get_model(name, pretrained_base=False, **options)
    return build


def _segmentation(name: str) -> Callable[[], Any]:
    def build() -> Any:
        from gluoncv import model_zoo
        return getattr(model_zoo, name)(3, backbone='resnet50', aux=False, pretrained_base=False, base_size=64,
                                        crop_size=64)
    return build


class _Block(gluon.HybridBlock):
    def __init__(self, channels: int, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.body = nn.HybridSequential(prefix='')
            for _at in range(2):
                self.body.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation('relu'))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.body(x)


class UNet(gluon.HybridBlock):
    """A U-Net of two levels (Ronneberger et al., 2015)."""

    def __init__(self) -> None:
        super().__init__(prefix='unet_')
        with self.name_scope():
            self.first, self.second, self.bottom = (_Block(channels) for channels in (4, 8, 16))
            self.up_second, self.up_first = nn.Conv2DTranspose(8, 2, strides=2), nn.Conv2DTranspose(4, 2, strides=2)
            self.down_second, self.down_first = _Block(8), _Block(4)
            self.output = nn.Conv2D(3, 1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        first = self.first(x)
        second = self.second(F.Pooling(first, kernel=(2, 2), stride=(2, 2)))
        bottom = self.bottom(F.Pooling(second, kernel=(2, 2), stride=(2, 2)))
        second = self.down_second(F.concat(self.up_second(bottom), second, dim=1))
        return self.output(self.down_first(F.concat(self.up_first(second), first, dim=1)))


def _bert() -> Any:
    from gluonnlp.model import BERTEncoder, BERTModel
    encoder = BERTEncoder(num_layers=2, units=16, hidden_size=32, max_length=8, num_heads=4, dropout=0.0)
    return BERTModel(encoder, vocab_size=50, token_type_vocab_size=2, units=16, embed_size=16)


class _LanguageModel(gluon.HybridBlock):
    """AWD-LSTM of GluonNLP without dropout, from zero states."""

    def __init__(self) -> None:
        super().__init__(prefix='awd_')
        from gluonnlp.model.language_model import AWDRNN
        with self.name_scope():
            self.model = AWDRNN('lstm', 50, embed_size=12, hidden_size=16, num_layers=2, tie_weights=True, dropout=0,
                                weight_drop=0, drop_h=0, drop_i=0, drop_e=0)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        states = [[F.zeros(shape=(1, 0, units), dtype='float64')] * 2 for units in (16, 12)]
        return self.model(x, states)[0]


def _deepar() -> Any:
    from gluonts.model.deepar._network import DeepARTrainingNetwork
    from gluonts.mx.distribution import StudentTOutput
    return DeepARTrainingNetwork(num_layers=2, num_cells=8, cell_type='lstm', history_length=9, context_length=6,
                                 prediction_length=3, distr_output=StudentTOutput(), dropout_rate=0.0, cardinality=[5],
                                 embedding_dimension=[4], lags_seq=[1, 3], dtype=np.float64)


def _forecasting_transformer() -> Any:
    from gluonts.model.transformer._network import TransformerTrainingNetwork
    from gluonts.model.transformer.trans_decoder import TransformerDecoder
    from gluonts.model.transformer.trans_encoder import TransformerEncoder
    from gluonts.mx.distribution import StudentTOutput
    config = {'model_dim': 16, 'pre_seq': 'dn', 'post_seq': 'drn', 'dropout_rate': 0.0, 'inner_ff_dim_scale': 2,
              'act_type': 'softrelu', 'num_heads': 4}
    return TransformerTrainingNetwork(
        encoder=TransformerEncoder(6, config, prefix='enc_'), decoder=TransformerDecoder(4, config, prefix='dec_'),
        history_length=9, context_length=6, prediction_length=4, distr_output=StudentTOutput(), cardinality=[5],
        embedding_dimension=4, lags_seq=[1, 3])


def _n_beats() -> Any:
    from gluonts.model.n_beats._network import NBEATSTrainingNetwork
    return NBEATSTrainingNetwork(
        loss_function='sMAPE', freq='D', prediction_length=4, context_length=8, num_stacks=3,
        num_blocks=[1] * 3, num_block_layers=[2] * 3, widths=[16] * 3, sharing=[False] * 3,
        expansion_coefficient_lengths=[4, 4, 3], stack_types=['G', 'S', 'T'], scale=True)


ROWS = grid(domain=(2, 1))
#: Images, boxes, and targets of the 252 boxes that 64 x 64 pixels have: objects, centers, scales, weights, classes.
YOLO = [(4, 3, 64, 64), (4, 2, 4), (4, 252, 1), (4, 252, 2), (4, 252, 2), (4, 252, 2), (4, 252, 20)]
#: Categories, real features, times and targets of the past, observed and padded ones, times and targets of the future.
DEEPAR = [(4, 1), (4, 1), (4, 9, 2), (4, 9), (4, 9), (4, 9), (4, 3, 2), (4, 3), (4, 3)]
#: The scale of samples without observed values is the mean of all samples.
SCALER = ('meanscaler?_sum2', 'meanscaler?_sum3', 'meanscaler?__maximumscalar0', 'meanscaler?__div0')
CLIENTS: Dict[str, Client] = {
    'U-Net': Client(UNet, [(4, 3, 16, 16)], ROWS, 'float64'),
    'FCN of GluonCV': Client(_segmentation('FCN'), [(4, 3, 64, 64)], ROWS, 'float64'),
    'DeepLab of GluonCV': Client(_segmentation('DeepLabV3'), [(4, 3, 64, 64)], ROWS, 'float64',
                                 unsplit=('*deeplabhead0_hybridsequential4_conv0_fwd',)),
    'HRNet of GluonCV': Client(_vision('hrnet_w18_small_v1_c'), [(4, 3, 64, 64)], ROWS, 'float64'),
    # Xavier refuses the vectors of its base network, which is a SymbolBlock.
    'SSD of GluonCV': Client(_vision('ssd_512_mobilenet1.0_voc'), [(4, 3, 128, 128)], ROWS, 'float64',
                             initializer='Uniform', unsplit=('expand_*conv?', 'convpredictor*_conv0_fwd')),
    # Its losses are of float32, in which batch statistics of few images would make rounding errors large.
    'YOLOv3 of GluonCV': Client(_vision('yolo3_mobilenet1.0_voc', norm_kwargs={'use_global_stats': True}), YOLO, ROWS),
    # MXNet multiplies interleaved queries, keys and values in float32 alone on CPUs.
    'BERT of GluonNLP': Client(_bert, [(4, 8), (4, 8), (4,), (4, 2)], grid(model=2), limits=(50, 2, 8, 8),
                               whole_weights=('*_position_weight', '*token_type_embed*', '*_pooler_*', '*_cls_*',
                                              'bertmodel?_dense0_*')),
    'Transformer of GluonNLP': Client(GluonNlpTransformer, [(4, 8), (4, 7), (4,), (4,)], grid(model=2), 'float64',
                                      limits=(50, 50, 8, 7), whole_weights=('*coder_const',)),
    'AWD-LSTM of GluonNLP': Client(_LanguageModel, [(8, 4)], by_name({'*dense*': {'channels': 2}}), 'float64',
                                   batch_axis=1, limits=(50,)),
    'DeepAR of GluonTS': Client(_deepar, DEEPAR, grid(model=2), 'float64', limits=(5, 0, 0, 0, 2, 2, 0, 0, 2),
                                mixing=SCALER, unsplit=('*_distr_*_fwd',)),
    # Its mask is float32.
    'Transformer of GluonTS': Client(_forecasting_transformer, [(4, 1), (4, 9, 2), (4, 9), (4, 9), (4, 4, 2), (4, 4)],
                                     grid(model=2), limits=(5, 0, 0, 2), mixing=SCALER + ('mean0', 'output 0 (mean0)'),
                                     unsplit=('*_distr_*_fwd',)),
    # The times of its seasons and trends are float32.
    'N-BEATS of GluonTS': Client(_n_beats, [(4, 8), (4, 8), (4, 4), (4, 4)], grid(model=2), limits=(0, 2, 0, 2),
                                 mixing=SCALER),
    'Sockeye': Client(Sockeye, [(4, 8, 1), (4,), (4, 7, 1), (4, 7)], grid(model=2), limits=(50, 8, 50, 50),
                      unsplit=('length_ratio_*_fwd',), whole_weights=('*_pos_embed_weight', 'length_ratio_*')),
}
