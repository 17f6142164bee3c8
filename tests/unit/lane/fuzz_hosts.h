// Three hosts of which two are hostile: their agents send the messages of a program, an input of fuzz_messages.cc.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "fuzz_program.h"
#include "store/keys.h"
#include "worker/worker.h"

namespace fuzz {

/// One of the other hosts: the messages that it has received, and the bytes that it still has to send.
class Other : public MessageSink {
 public:
  explicit Other(int socket) : socket_(socket), hearing_(dup(socket), *this, heard_) {}
  ~Other() override { gone(); }

  void begin(const Header& header, Segment segments[2]) override {
    const size_t size = size_of_body(header);
    body_ = Buffer(size);
    segments[0] = {body_.data(), size};
  }
  void end(const Header& header) override {
    if (header.kind == Message::kPull) pulls.push_back(header);
  }

  void hear() {
    for (int i = 0; i < kTurns && !deaf; ++i) hearing_.read();
  }
  void send(const std::string& data) {
    // Bytes for which the agent has no room are lost, so the following bytes are noise.
    if (socket_ >= 0 && ::send(socket_, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
  }
  void gone() {
    if (socket_ < 0) return;
    shutdown(socket_, SHUT_RDWR);
    close(socket_);
    socket_ = -1;
  }

  /// Pulls that are not answered yet, in their order.
  std::vector<Header> pulls;
  std::string held[kPriorities];
  bool deaf = false;
  /// The shapes of the tables, by their numbers.
  std::vector<TableShape> shapes;

 private:
  size_t size_of_body(const Header& header) const {
    const TableShape& shape = shapes[header.table % shapes.size()];
    switch (header.kind) {
      case Message::kPush: return header.count * (shape.id_bytes() + shape.wire_row_bytes(header.flags & kExactRows));
      case Message::kPull: return header.count * shape.id_bytes();
      case Message::kRows: return header.count * shape.wire_row_bytes(header.flags & kUncached);
      case Message::kRingData: return header.count;
      case Message::kBye:
      case Message::kRingCredit: return 0;
      default:
        return header.flags & kQuantized ? int8_bytes(header.count)
                                         : header.count * size_of(static_cast<Dtype>(header.flags));
    }
  }

  int socket_;
  Traffic heard_ = {};
  Connection hearing_;
  Buffer body_;
};

/// Three hosts of one worker and one agent each; only the first one is real.
class Hosts {
 public:
  Hosts()
      : agent_(
            0, membership(), [](uint32_t, uint32_t, const RowList&) {}, [](const std::string&) {}),
        worker_(membership(), 0, 0) {
    agent_.add_worker(0, worker_.block().descriptor());
    worker_.add_agent(0, dup(agent_.doorbell()), agent_.block().descriptor());
    for (uint32_t host = 1; host < kHosts; ++host) {
      int pair[2];
      check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
      agent_.connect(host, pair[0]);
      others_.push_back(std::make_unique<Other>(pair[1]));
      links_.emplace_back(new Link);
      agent_.open_channel(0, false, host, 0, host, links_.back()->in.memory().descriptor());
      agent_.open_channel(0, true, 0, host, host, links_.back()->out.memory().descriptor());
    }
    tables_.resize(4);
    tables_[0].shape = shape(20, 2, RowFormat::kExact, {0, 1, 2, 0});
    tables_[1].shape = shape(9, 3, RowFormat::kFloat16, {1, 0});
    tables_[2].shape = shape(20, 700, RowFormat::kExact, {0, 1});  // 28 kB in one message
    tables_[3].shape = shape(0, 2, RowFormat::kInt8, {0, 1, 0});
    tables_[3].shape.dynamic = true;
    tables_[3].shape.max_batch_rows = kKeys;
    for (uint32_t table = 0; table < tables_.size(); ++table) {
      tables_[table].number = table;
      open_table(tables_[table]);
      for (auto& other : others_) other->shapes.push_back(tables_[table].shape);
    }
    // Chunks: one, of this host; one of each host; one of the next host; and two allreduces that travel as int8, one of
    // this host and one of the next host.
    const uint64_t counts[] = {5, 24000, 300, 600, 300};
    for (uint64_t number = 6; number < 11; ++number) {
      allreduces_.emplace_back();
      allreduces_.back().number = number;
      allreduces_.back().count = counts[number - 6];
      allreduces_.back().quantized = number > 8;
      if (number != 8) open_allreduce(allreduces_.back());
    }
  }

  /// Return why the agent has ended; empty if it has not.
  std::string run(const Input& input) {
    Reader reader(input.data(), input.size());
    try {
      while (!reader.empty()) {
        const uint8_t what = reader.byte();
        step(static_cast<Step>((what >> 1) % kSteps), what & 1, reader);
        for (int i = 0; i < kTurns; ++i) agent_.run_once(0);
        for (auto& other : others_) other->hear();
      }
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  /// The number of results of the honest worker: pulls, allreduces, bytes of a ring, and credits.
  uint32_t results = 0;

 private:
  struct OpenTable {
    uint32_t number = 0;
    TableShape shape;
    std::vector<int> requests;
    bool settled = true;
  };
  struct OpenAllreduce {
    uint64_t number = 0, count = 0;
    bool quantized = false;
    Memory input, output;
    uint32_t rounds = 0;
    bool under_way() const { return input.mapped() && output.at<AllreduceOutput>(0)->rounds.load() != rounds; }
  };

  /// The honest worker's channels from and to the one of another host, and the rings by tag.
  struct Link {
    Channel in{kChannelBytes}, out{kChannelBytes};
    std::map<uint64_t, uint32_t> rings;
  };

  static Membership membership() { return {{0, 1, 2}, {1, 1, 1}}; }
  static TableShape shape(uint64_t rows, uint32_t width, RowFormat format, const std::vector<uint32_t>& owners) {
    TableShape table_shape;
    table_shape.rows = rows;
    table_shape.width = width;
    table_shape.format = format;
    table_shape.owners = owners;
    return table_shape;
  }

  void open_table(OpenTable& table) {
    if (table.shape.dynamic) {
      RowStoreOptions options;
      options.width = table.shape.width;
      agent_.add_dynamic_table(table.number, table.shape, "items", options);
    } else {
      agent_.add_table(table.number, table.shape);
    }
    agent_.attach(table.number, 0, worker_.add_table(table.number, table.shape));
    const int agent_memory = agent_.share_table(table.number);
    worker_.attach(table.number, 0, agent_memory);
    close(agent_memory);
    Rule rule;
    rule.kind = RuleKind::kSgd;
    for (uint32_t part = 0; part < table.shape.partitions(); ++part) {
      if (table.shape.owners[part] == 0) agent_.set_rule(table.number, part, rule);
    }
    table.settled = true;
  }

  void open_allreduce(OpenAllreduce& allreduce) {
    const size_t size = kAllreduceData + allreduce.count * sizeof(float);
    allreduce.input = Memory(size);
    const int result =
        agent_.open_allreduce(allreduce.number, 0, Dtype::kFloat32, allreduce.count, allreduce.input.descriptor(), {},
                              allreduce.quantized);
    allreduce.output = Memory(result, size);
    close(result);
    allreduce.rounds = 0;
  }

  void step(Step what, bool last, Reader& reader) {
    Other& other = *others_[last];
    switch (what) {
      case kSay: return say(other, last + 1, reader);
      case kBytes: {
        const uint8_t stream = reader.byte() % kPriorities;
        other.held[stream] += reader.bytes(reader.byte());
        return flow(other, stream, other.held[stream].size());
      }
      case kNoise: {
        return other.send(reader.bytes(reader.byte()));
      }
      case kGoOn: {
        const uint8_t stream = reader.byte() % kPriorities;
        return flow(other, stream, (other.held[stream].size() * (reader.byte() + 1) + 255) / 256);
      }
      case kDeaf: other.deaf = !other.deaf; return;
      case kGone: return other.gone();
      case kPushRows: return push_rows(table(reader), reader);
      case kPostRequest: return post_request(table(reader), reader);
      case kWaitForRows: return wait_for_rows(table(reader));
      case kStartAllreduce: return start_allreduce(allreduce(reader));
      case kReopenAllreduce: return reopen(allreduce(reader));
      case kWriteBytes: return write_bytes(*links_[last], reader);
      case kReadBytes: return read_bytes(*links_[last]);
      default: return reopen(table(reader));
    }
  }

  OpenTable& table(Reader& reader) { return tables_[reader.byte() % tables_.size()]; }
  OpenAllreduce& allreduce(Reader& reader) { return allreduces_[reader.byte() % allreduces_.size()]; }

  /// The arguments are: a template; a table, allreduce or tag; a partition, chunk or size of a ring; the number of rows
  /// or bytes; the version of a pull, or a ring; a stream, if not the message's own; a byte to change and its change,
  /// if any; and the part that is held back.
  void say(Other& other, uint32_t from, Reader& reader) {
    const uint8_t kind = reader.byte(), which = reader.byte(), part = reader.byte(), count = reader.byte(),
                  want = reader.byte(), stream = reader.byte(), place = reader.byte(), change = reader.byte(),
                  back = reader.byte();
    const OpenTable& table = tables_[which % tables_.size()];
    const OpenAllreduce& allreduce = allreduces_[which % allreduces_.size()];
    Header header;
    size_t values = 0;
    header.kind = static_cast<Message>(1 + (kind + 7) % 8);
    header.table = table.number;
    header.part = part;
    header.count = count;
    header.version = want;
    header.ring = want;
    header.number = from * 1000 + want;
    switch (header.kind) {
      case kAPush: values = header.count * table.shape.wire_row_bytes(false); break;
      case kAPull:
      case kABye: break;
      case kAnAnswer:
        if (other.pulls.empty()) return;
        header = other.pulls.front();
        other.pulls.erase(other.pulls.begin());
        header.kind = Message::kRows;
        values = header.count * tables_[header.table % tables_.size()].shape.wire_row_bytes(header.flags & kUncached);
        break;
      case kARingData:
        header.flags = static_cast<uint8_t>(kMinRingLog2 + part);
        header.table = from;
        header.part = 0;
        header.number = which;
        values = count;
        break;
      case kARingCredit:
        header.table = 0;
        header.part = from;
        header.number = 0;
        break;
      default: {
        const uint64_t chunk = allreduce.number == 7 ? 8192 : allreduce.count;
        header.flags = static_cast<uint8_t>(static_cast<uint8_t>(Dtype::kFloat32) |
                                            (allreduce.quantized ? kQuantized : 0));
        header.table = header.version = header.ring = 0;
        header.count =
            static_cast<uint32_t>(std::min(chunk, allreduce.count - std::min(allreduce.count, part * chunk)));
        header.number = allreduce.number;
        values = allreduce.quantized ? int8_bytes(header.count) : header.count * sizeof(float);
      }
    }
    std::string body;
    if (header.kind == kAPush || header.kind == kAPull) {
      int64_t key = 0;
      for (int32_t i = 0; i < static_cast<int32_t>(header.count); ++i, ++key) {
        if (!table.shape.dynamic) {
          body.append(reinterpret_cast<const char*>(&i), sizeof i);
          continue;
        }
        const uint32_t parts = table.shape.partitions();
        while (partition_of(key, parts) != header.part % parts) ++key;
        body.append(reinterpret_cast<const char*>(&key), sizeof key);
      }
    }
    body.append(values, 0);
    std::string message(reinterpret_cast<const char*>(&header), sizeof header);
    message += body;
    message[place % message.size()] ^= static_cast<char>(change);
    const uint32_t where = stream < kAnotherStream ? priority_of(header.kind) : (stream - kAnotherStream) % kPriorities;
    other.held[where] += message;
    flow(other, where, other.held[where].size() - message.size() * back / 256);
  }

  void flow(Other& other, uint32_t stream, size_t size) {
    while (size > 0) {
      const size_t part = std::min(size, kFragment);
      const uint32_t fragment = stream << 28 | static_cast<uint32_t>(part);
      std::string data(reinterpret_cast<const char*>(&fragment), sizeof fragment);
      data += other.held[stream].substr(0, part);
      other.held[stream].erase(0, part);
      size -= part;
      // As large messages arrive: the agent begins before the rest is there.
      const size_t first = data.size() > kLarge ? kLarge / 2 : data.size();
      other.send(data.substr(0, first));
      if (first == data.size()) continue;
      agent_.run_once(0);
      other.send(data.substr(first));
      agent_.run_once(0);
    }
  }

  std::vector<int64_t> ids(const OpenTable& table, Reader& reader) const {
    std::vector<int64_t> chosen;
    const uint8_t every = reader.byte() % 4 + 1;
    for (uint64_t row = 0; row < table.shape.max_rows(); row += every) {
      chosen.push_back(table.shape.dynamic ? (static_cast<int64_t>(row) - 4) * (int64_t{1} << 59)
                                           : static_cast<int64_t>(row));
    }
    return chosen;
  }
  void push_rows(OpenTable& table, Reader& reader) {
    if (!table.requests.empty()) return;  // workers do not push then
    const std::vector<int64_t> touched = ids(table, reader);
    const std::vector<float> rows(touched.size() * table.shape.width, 1);
    worker_.push(table.number, touched.data(), static_cast<uint32_t>(touched.size()),
                 reinterpret_cast<const char*>(rows.data()), 0);
    table.settled = false;
  }
  void post_request(OpenTable& table, Reader& reader) {
    const uint32_t flags = reader.byte() % 3;
    const std::vector<int64_t> requested_ids = flags == kFence ? std::vector<int64_t>() : ids(table, reader);
    const int request = worker_.post(table.number, requested_ids.data(),
                                     static_cast<uint32_t>(requested_ids.size()), flags);
    if (request >= 0) table.requests.push_back(request);
    if (flags == kFence) table.settled = true;
  }
  void wait_for_rows(OpenTable& table) {
    std::vector<float> rows(table.shape.max_rows() * table.shape.width);
    for (size_t i = 0; i < table.requests.size();) {
      if (worker_.wait(table.number, table.requests[i], reinterpret_cast<char*>(rows.data()), 0)) {
        table.requests.erase(table.requests.begin() + static_cast<ptrdiff_t>(i));
        ++results;
      } else {
        ++i;
      }
    }
  }
  void start_allreduce(OpenAllreduce& allreduce) {
    if (!allreduce.input.mapped()) return open_allreduce(allreduce);
    if (allreduce.under_way()) return;
    if (allreduce.rounds > 0) ++results;
    ++allreduce.rounds;
    allreduce.input.at<AllreduceInput>(0)->rounds.add();
    worker_.block().at<WorkerBlock>(0)->allreduce_inputs.add();
  }
  void write_bytes(Link& link, Reader& reader) {
    const uint64_t tag = reader.byte() % 4;
    const uint32_t bytes = reader.byte();
    const auto [found, is_new] = link.rings.try_emplace(tag, 0);
    if (is_new) found->second = link.out.open_ring(tag, 1);
    RingHeader& ring = link.out.ring(found->second);
    const uint32_t written = ring.written.load(), used = written - ring.consumed.load();
    check(used <= ring.capacity, "more bytes were consumed than written");
    if (used == 0 && !is_new) ++results;
    if (bytes > ring.capacity - used) return;
    ring.written.store(written + bytes);
    changed(link.out, found->second);
  }
  void read_bytes(Link& link) {
    for (uint32_t number = 0; number < link.in.header().rings.load(); ++number) {
      RingHeader& ring = link.in.ring(number);
      if (ring.capacity == 0) continue;
      check(link.in.ring_data(number) != nullptr, "a ring without memory");
      const uint32_t written = ring.written.load(), there = written - ring.consumed.load();
      check(there <= ring.capacity, "more bytes were written than the ring holds");
      if (there == 0) continue;
      ++results;
      ring.consumed.store(written);
      changed(link.in, number);
    }
  }
  void changed(Channel& channel, uint32_t ring) {
    channel.mark_changed(ring, worker_.block().at<WorkerBlock>(0)->channel_changes.load());
    worker_.block().at<WorkerBlock>(0)->channel_changes.add();
  }
  void reopen(OpenAllreduce& allreduce) {
    if (!allreduce.input.mapped() || allreduce.under_way()) return;
    if (allreduce.rounds > 0) ++results;
    agent_.drop_allreduce(allreduce.number);
    allreduce.input = Memory();
    allreduce.output = Memory();
  }
  void reopen(OpenTable& table) {
    if (!table.settled || !table.requests.empty()) return;  // an operation is under way
    agent_.drop_table(table.number);
    worker_.drop_table(table.number);
    table.number += static_cast<uint32_t>(tables_.size());
    open_table(table);
  }

  Agent agent_;
  Worker worker_;
  std::vector<std::unique_ptr<Other>> others_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<OpenTable> tables_;
  std::vector<OpenAllreduce> allreduces_;
};

}  // namespace fuzz
