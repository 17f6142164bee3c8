// An agent's part in dense sums over all workers: it adds up what its host's workers give, exchanges that with the
// agents of other hosts, and shows its host's workers the result.
//
// Each sum is cut into pieces; each piece belongs to one host.  An agent sends the sum of its host to the owner of the
// piece (Message::kPart), which adds all of them up in the order of hosts and sends the result to all (kTotal).  So an
// array crosses a host's link as often as in a ring, 2(H-1)/H times each way, in two hops; nobody has to agree with
// others on an order of sums, and each begins and ends by itself.
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

class Sums {
 public:
  /// `peer` gives the connection with an agent.
  Sums(uint32_t agent, const Membership& membership, std::function<Connection&(uint32_t)> peer);
  ~Sums();

  /// Learn where a worker of this host, by its number there, will give its values of a sum: memory that begins with a
  /// SumGiven.  Returns the descriptor of the result, which begins with a SumTotal; for the caller to close.
  int open(uint64_t number, uint32_t worker, Dtype dtype, uint64_t count, int descriptor);
  /// A worker of this host uses a sum no more; nothing is under way.
  void drop(uint64_t number);

  /// Begin what all workers of this host have given; returns whether a sum has got its result since the last call.
  bool progress(const std::vector<Memory>& workers);
  /// Whether workers have given anything that `progress` has not seen.
  bool has_work(const std::vector<Memory>& workers) const;

  /// Messages kPart and kTotal of an agent, see Inbox.
  void begin(const Header& header, uint32_t from, Piece pieces[2]);
  void end(const Header& header, uint32_t from);

 private:
  struct Sum;

  uint32_t owner(const Sum& sum, uint32_t piece) const;
  void cut(Sum& sum);
  void start(Sum& sum);
  void finish_piece(Sum& sum, uint32_t piece);
  void done(Sum& sum);
  void send(Sum& sum, uint32_t piece, Message kind, const char* data, std::shared_ptr<Memory> owner, uint32_t host);
  Sum& from_other(const Header& header, uint32_t from);

  const uint32_t agent_, host_;
  const Membership& membership_;
  const std::function<Connection&(uint32_t)> peer_;
  /// Hosts that take part: those with workers.
  std::vector<uint32_t> hosts_;
  std::map<uint64_t, std::unique_ptr<Sum>> sums_;
  std::map<uint32_t, Buffer> arriving_;  // by agent: of the part that it sends
  std::vector<uint32_t> seen_;  // by worker: SumGiven counts
  size_t early_ = 0;            // bytes that came for sums which nobody here has opened yet
  bool news_ = false;
  bool again_ = false;          // a sum may begin that had to wait for messages
};

}  // namespace lane
