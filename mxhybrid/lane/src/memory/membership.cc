#include "memory/membership.h"

#include <algorithm>
#include <stdexcept>

namespace lane {
namespace {

uint32_t one_of(const std::vector<uint32_t>& agents, uint64_t number) {
  if (agents.empty()) throw std::runtime_error("a host has no server");
  return agents[number % agents.size()];
}

}  // namespace

std::vector<uint32_t> Membership::agents_of(uint32_t host) const {
  std::vector<uint32_t> agents;
  for (uint32_t agent = 0; agent < agent_hosts.size(); ++agent) {
    if (agent_hosts[agent] == host) agents.push_back(agent);
  }
  return agents;
}

uint32_t Membership::handler(uint32_t host, uint32_t owner) const {
  return agent_hosts.at(owner) == host ? owner : one_of(agents_of(host), owner);
}

bool Membership::has_one_host() const {
  return std::count_if(worker_counts.begin(), worker_counts.end(), [](uint32_t count) { return count > 0; }) <= 1;
}

uint32_t Membership::allreduce_agent(uint32_t host, uint64_t number) const { return one_of(agents_of(host), number); }

uint32_t Membership::channel_agent(uint32_t host, uint32_t from, uint32_t to) const {
  return one_of(agents_of(host), uint64_t(from) + to);
}

}  // namespace lane
