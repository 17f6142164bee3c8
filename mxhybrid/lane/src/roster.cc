#include "roster.h"

#include <stdexcept>

namespace lane {
namespace {

uint32_t one_of(const std::vector<uint32_t>& nodes, uint64_t number) {
  if (nodes.empty()) throw std::runtime_error("a host has no server");
  return nodes[number % nodes.size()];
}

}  // namespace

std::vector<uint32_t> Roster::nodes_of(uint32_t host) const {
  std::vector<uint32_t> found;
  for (uint32_t node = 0; node < hosts.size(); ++node) {
    if (hosts[node] == host) found.push_back(node);
  }
  return found;
}

uint32_t Roster::handler(uint32_t host, uint32_t owner) const {
  return hosts.at(owner) == host ? owner : one_of(nodes_of(host), owner);
}

uint32_t Roster::sums_node(uint32_t host, uint64_t number) const { return one_of(nodes_of(host), number); }

}  // namespace lane
