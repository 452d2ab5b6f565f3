// Channel as made by Team.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/handle_pod.h"
#include "overlace/team.h"
#include "src/runtime/state.h"

namespace overlace {

struct ChannelState final : Channel {
  ChannelState(TeamState& team_state, StreamRef stream_ref, const ChannelOptions& channel_options);
  ~ChannelState() override;

  Team& team() const override { return team_handle; }
  StreamRef stream() const override { return stream_; }
  void use(StreamRef stream) override;
  const ChannelOptions& options() const override { return options_; }
  int limit_sms(int sms) override;
  int sm_limit() const override { return sm_limit_; }
  SignalIds ids(uint32_t count, Domain domain, const char* name) override;
  void release(SignalIds ids) override;
  Inbox inbox(size_t bytes, int k, const char* name) override;
  void release(const Inbox& inbox) override;
  Counters counters(uint32_t count, const char* name) override;
  void reset(const Counters& counters) override;
  void release(const Counters& counters) override;
  const ChannelPod& pod() const override { return pod_; }
  std::shared_ptr<void>& attachment() override { return attachment_; }

  mutable Team team_handle;  // without ownership: the team owns the channel

 private:
  /// Memory, ids and pod; what the ranks compare, in words. Throws; `made` has what was there by then.
  std::string make_inbox(size_t bytes, const std::string& name, InboxPod& pod, Inbox& made);
  void give_back(const Inbox& inbox);
  size_t find(const Counters& counters, const char* call) const;

  TeamState& team_;
  StreamRef stream_;
  ChannelOptions options_;
  int sm_limit_ = 0;  // 0: none
  ChannelPod pod_{};
  std::map<uint32_t, uint32_t> owned_;              // first -> count
  std::vector<std::unique_ptr<InboxPod>> inboxes_;  // addresses stay
  std::vector<std::unique_ptr<CountersPod>> counters_;
  std::shared_ptr<void> attachment_;
};

}  // namespace overlace
