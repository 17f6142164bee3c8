"""Counts of the operators that were drawn, and the operators of MXNet that no entry draws, with the reason."""
import collections
import re
from typing import Dict, List

import mxnet as mx

from ..network import Program
from .registry import ENTRIES

#: Reasons, by patterns of names; the first that fits counts.
REASONS = {
    'drawn under another name or by a layer': (
        r'BatchNorm|InstanceNorm|linalg_\w+|contrib\.ctc_loss|random\.shuffle|RNN|sparse\.\w+'),
    'for row_sparse tables, which are outside of what is split': r'contrib\.SparseEmbedding',
    'former versions, which Gluon does not call': r'\w+_v1',
    'gives other types than real numbers': r'random\.multinomial|sample_multinomial',
    'updates weights, for optimizers': r'\w*(_update|update_phase\d|multi_lars|multi_sum_sq|reset_arrays)\w*|'
                                       r'contrib\.\w*update|multi_all_finite',
    'draws numbers of nothing, which is refused': (
        r'(random\.)?(normal|uniform|exponential|gamma|poisson|randint|randn|(generalized_)?negative_binomial)|'
        r'random_(?!pdf)\w+|contrib\.uniform|contrib\.rand_zipfian'),
    'has a body of its own, which is refused': r'contrib\.(foreach|while_loop|cond)',
    'makes constants, which split networks have whole': r'arange|eye|full|linspace|ones|zeros|load',
    'for quantized networks, which do not train': r'contrib\.(quantize|quantized|dequantize|requantize|calibrate)\w*',
    'for graphs and sparse arrays': r'contrib\.(dgl_\w+|edge_id|getnnz)|cast_storage',
    'densities of distributions, elementwise like others': r'random_pdf_\w+',
    'its shape depends on values': r'contrib\.boolean_mask',
    'for GPUs only': r'contrib\.(fft|ifft|count_sketch|DeformablePSROIPooling|PSROIPooling|backward_\w+)',
    'the sample is in the data, as a number': r'contrib\.(Proposal|MultiProposal|RROIAlign)',
    'for images of 8 bits and augmentation': r'image\.\w+',
    'gives arrays to NumPy, not to symbols': r'histogram',
    'keeps a state that no process shares': r'IdentityAttachKLSparseReg|contrib\.(SyncBatchNorm|hawkesll)',
    'float32 only': r'contrib\.BatchNormWithReLU',
}


def functions() -> List[str]:
    """Return all functions that Gluon's F has, for arrays and for symbols."""
    names = []
    for prefix in ('', 'contrib', 'linalg', 'random', 'image', 'sparse'):
        symbols, arrays = [getattr(module, prefix) if prefix else module for module in (mx.sym, mx.nd)]
        names += [(prefix + '.' if prefix else '') + name for name, function in vars(symbols).items()
                  if not name.startswith('_') and callable(function) and not isinstance(function, type)
                  and callable(getattr(arrays, name, None))]
    return names


def reasons() -> Dict[str, List[str]]:
    """Return the functions that no entry draws, by reason; functions without a reason under 'no entry yet'."""
    names_by_reason: Dict[str, List[str]] = collections.defaultdict(list)
    for name in functions():
        if name not in ENTRIES:
            fits = (reason for reason, pattern in REASONS.items() if re.fullmatch(pattern, name))
            names_by_reason[next(fits, 'no entry yet')].append(name)
    return names_by_reason


def table(programs: List[Program]) -> str:
    """List how often each operator was drawn, and the operators of MXNet that never are, with reasons."""
    counts = collections.Counter(statement['op'] for program in programs for statement in program['statements'])
    return '\n'.join(['operators drawn: ' + ', '.join('%s %d' % item for item in sorted(counts.items())), *(
        'never drawn, %s: %s' % (reason, ', '.join(sorted(names))) for reason, names in sorted(reasons().items()))])
