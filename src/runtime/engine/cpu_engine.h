// What the engines of CPU ranks share: checks of arguments, groups of sends and receives, what a rank sends to itself.
#pragma once

#include <string>
#include <vector>

#include "overlace/net_engine.h"
#include "src/runtime/state.h"

namespace overlace::runtime {

class CpuEngine : public NetEngine {
 public:
  /// `name`: a literal, for messages too.
  CpuEngine(TeamState& team, const char* name) : team_(team), name_(name) {}

  std::string name() const override { return name_; }
  void send(const void* data, size_t bytes, int peer, StreamRef stream) override;
  void recv(void* data, size_t bytes, int peer, StreamRef stream) override;
  void group_begin(std::string_view) override { ++group_depth_; }
  void group_end() override;
  /// Waits are ended by the runtime's abort.
  void abort() override { pending_.clear(); }

 protected:
  struct Message {
    bool is_send;
    void* data;
    size_t bytes, peer;
  };
  /// The messages of a group in call order, none of them with this rank itself.
  virtual void exchange(const std::vector<Message>& messages) = 0;

  size_t self() const { return static_cast<size_t>(team_.rank); }
  /// Throws what the runtime was aborted by, or InvalidArgument where the stream is of a GPU.
  void enter(StreamRef stream) const;
  /// Throws Unsupported.
  void check_sum(DType dtype) const;
  /// Throws InvalidArgument; `what` begins its text.
  size_t check_rank(int rank, const char* what) const;

  TeamState& team_;

 private:
  void add(Message message, int peer, StreamRef stream);
  void run_pending();

  const char* const name_;
  std::vector<Message> pending_;
  int group_depth_ = 0;
};

}  // namespace overlace::runtime
