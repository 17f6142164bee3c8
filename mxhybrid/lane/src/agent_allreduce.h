// An agent's part in dense sums over all workers: it adds up what its host's workers give, exchanges that with the
// agents of other hosts, and shows its host's workers the result.
//
// Each sum is cut into chunks; each chunk belongs to one host.  An agent sends the sum of its host to the owner of the
// chunk (Message::kContribution), which adds all of them up in the order of hosts and sends the result to all
// (kResult). So an array crosses a host's link as often as in a ring, 2(H-1)/H times each way, in two hops; nobody has
// to agree with others on an order of sums, and each begins and ends by itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "connection.h"
#include "membership.h"
#include "shared.h"

namespace lane {

class AgentAllreduce {
 public:
  /// `peer` gives the connection with an agent.
  AgentAllreduce(uint32_t agent, const Membership& membership, std::function<Connection&(uint32_t)> peer);
  ~AgentAllreduce();

  /// Learn where a worker of this host, by its number there, will give its values of a sum: memory that begins with a
  /// AllreduceInput.  Returns the descriptor of the result, which begins with a AllreduceOutput; for the caller to
  /// close.
  int open(uint64_t number, uint32_t worker, Dtype dtype, uint64_t count, int descriptor);
  /// A worker of this host uses a sum no more; nothing is under way.
  void drop(uint64_t number);

  /// Begin what all workers of this host have given; returns whether a sum has got its result since the last call.
  bool progress(const std::vector<Memory>& workers);
  /// Whether workers have given anything that `progress` has not seen.
  bool has_work(const std::vector<Memory>& workers) const;

  /// Messages kContribution and kResult of an agent, see MessageSink.
  void begin(const Header& header, uint32_t from, Segment segments[2]);
  void end(const Header& header, uint32_t from);

 private:
  struct Operation;

  uint32_t owner(const Operation& operation, uint32_t chunk) const;
  void set_chunks(Operation& operation);
  void start(Operation& operation);
  void finish_chunk(Operation& operation, uint32_t chunk);
  void done(Operation& operation);
  void send(Operation& operation, uint32_t chunk, Message kind, const char* data, std::shared_ptr<Memory> owner,
            uint32_t host);
  Operation& from_other(const Header& header, uint32_t from);

  const uint32_t agent_, host_;
  const Membership& membership_;
  const std::function<Connection&(uint32_t)> peer_;
  /// Hosts that take part: those with workers.
  std::vector<uint32_t> hosts_;
  std::map<uint64_t, std::unique_ptr<Operation>> operations_;
  std::map<uint32_t, Buffer> arriving_;  // by agent: of the part that it sends
  std::vector<uint32_t> seen_;  // by worker: AllreduceInput counts
  size_t early_bytes_ = 0;            // bytes that came for sums which nobody here has opened yet
  bool has_results_ = false;
  bool retry_ = false;          // a sum may begin that had to wait for messages
};

}  // namespace lane
