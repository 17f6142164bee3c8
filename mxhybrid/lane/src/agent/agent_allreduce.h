// An agent's part in allreduces over all workers: it sums the inputs of the workers of its host, exchanges these sums
// with the agents of other hosts, and writes the output for its workers.
//
// An array is cut into chunks, each of which belongs to one host.  An agent sends its host's sum of a chunk to the host
// that owns the chunk (Message::kContribution).  The owner adds the sums in the order of hosts and sends the result to
// all hosts (kResult).  So an array crosses the link of each of H hosts 2(H-1)/H times in each direction, as with a
// ring allreduce, but in two hops.  Hosts need not agree on an order of allreduces: each one begins and ends by itself.
//
// Values of float32 may travel as int8, in blocks with a scale (int8.h), with error feedback: the residuals of rounding
// are added to the values of the next round.  The values that are rounded are the host's sum of a chunk that another
// host owns, and the result of a chunk that this host owns.  The agent keeps one residual for each element. The owner
// of a range also uses the rounded result, so that all workers get the same bits.  An allreduce within one host is
// exact.
//
// If each worker owns a range of the array, the two hops may be rounds of their own: a reduce-scatter, in which hosts
// exchange contributions, and an allgather, in which they exchange results.  Between them workers replace their ranges.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "memory/membership.h"
#include "memory/shared.h"
#include "network/connection.h"

namespace lane {

class AgentAllreduce {
 public:
  /// `peer` returns the connection with another agent.
  AgentAllreduce(uint32_t agent, const Membership& membership, std::function<Connection&(uint32_t)> peer);
  ~AgentAllreduce();

  /// Map the input of a worker of this host, by its local number: memory that begins with an AllreduceInput.  Returns
  /// the descriptor of the output, memory that begins with an AllreduceOutput, which the caller closes.  `ends` has the
  /// end of the range of each worker, in the order of hosts and local numbers; it is empty if workers own no ranges.
  /// `quantized` values, of float32, travel as int8.
  int open(uint64_t number, uint32_t worker, Dtype dtype, uint64_t count, int descriptor,
           const std::vector<uint64_t>& ends, bool quantized);
  /// Drop an allreduce for one worker of this host; it is not under way.
  void drop(uint64_t number);

  /// Start the allreduces whose inputs are complete on this host; return whether any output was completed since the
  /// last call.
  bool progress(const std::vector<Memory>& workers);
  /// Return whether workers have completed inputs since the last `progress`.
  bool has_work(const std::vector<Memory>& workers) const;

  /// Receive a message kContribution or kResult from another agent, see MessageSink.
  void begin(const Header& header, uint32_t from, Segment segments[2]);
  void end(const Header& header, uint32_t from);

 private:
  struct Operation;

  void set_ranges(Operation& operation, const std::vector<uint64_t>& ends);
  void set_chunks(Operation& operation);
  void start(Operation& operation);
  void sum(Operation& operation);
  void gather(Operation& operation);
  void finish_chunk(Operation& operation, uint32_t chunk);
  /// End the current round if it waits for nothing; return whether it did.
  bool finish_if_complete(Operation& operation);
  void send(Operation& operation, uint32_t chunk, Message kind, const char* data, std::shared_ptr<const void> owner,
            uint32_t host);
  std::shared_ptr<Buffer> quantize(Operation& operation, uint32_t chunk, const char* values);
  Operation& checked_operation(const Header& header, uint32_t from);

  const uint32_t agent_, host_;
  const Membership& membership_;
  const std::function<Connection&(uint32_t)> peer_;
  /// The hosts that take part: those with workers.
  std::vector<uint32_t> hosts_;
  std::map<uint64_t, std::unique_ptr<Operation>> operations_;
  std::map<uint32_t, Buffer> arriving_;  // the contribution that each agent is sending
  std::vector<uint32_t> seen_;           // WorkerBlock::allreduce_inputs of each worker
  size_t early_bytes_ = 0;               // bytes of contributions to allreduces that are not open here yet
  bool has_results_ = false;
  bool retry_ = false;  // an allreduce that waited for messages may start
};

}  // namespace lane
