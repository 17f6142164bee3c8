// The conditions under which a round of an allreduce is complete in an agent.
#pragma once

#include <cstdint>

#include "memory/shared.h"

namespace lane {

/// A round on one host.  Every kind of round has its own conditions:
///
///   kSum      each chunk of this host is added up, and the results of all other chunks have arrived
///   kScatter  each chunk of this host is added up, and the contributions to all other chunks are sent: they are read
///             from the inputs, which workers write again afterwards
///   kGather   the results of all chunks of other hosts have arrived
class AllreduceRound {
 public:
  AllreduceRound() = default;
  /// Begin a round; a number of chunks belong to this host, and the others to other hosts.
  AllreduceRound(AllreduceKind kind, uint32_t own_chunks, uint32_t other_chunks)
      : kind_(kind),
        unadded_(kind == AllreduceKind::kGather ? 0 : own_chunks),
        missing_results_(kind == AllreduceKind::kScatter ? 0 : other_chunks),
        unsent_(kind == AllreduceKind::kScatter ? other_chunks : 0) {}

  /// Return whether hosts exchange the results of chunks in this round.  If not, `contribution_sent` is to be called.
  bool has_results() const { return kind_ != AllreduceKind::kScatter; }

  void chunk_added() { --unadded_; }
  void result_arrived() { --missing_results_; }
  void contribution_sent() { --unsent_; }
  bool is_complete() const { return unadded_ == 0 && missing_results_ == 0 && unsent_ == 0; }

 private:
  AllreduceKind kind_ = AllreduceKind::kSum;
  /// Chunks of this host to which contributions are missing.
  uint32_t unadded_ = 0;
  /// Chunks of other hosts whose results have not arrived.
  uint32_t missing_results_ = 0;
  /// Contributions that are in the queue of a connection.
  uint32_t unsent_ = 0;
};

}  // namespace lane
