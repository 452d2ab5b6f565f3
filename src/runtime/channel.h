// Channel as made by Team.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "overlace/channel.h"
#include "overlace/team.h"
#include "src/runtime/state.h"
#include "src/spec/handle_pod.h"

namespace overlace {

struct ChannelState final : Channel {
  ChannelState(TeamState& team_state, StreamRef stream_ref, const ChannelOptions& channel_options);
  ~ChannelState() override;

  Team& team() const override { return team_handle; }
  StreamRef stream() const override { return stream_; }
  const ChannelOptions& options() const override { return options_; }
  SignalIds ids(uint32_t count, Domain domain, const char* name) override;
  void release(SignalIds ids) override;
  const ChannelPod& pod() const override { return pod_; }
  std::shared_ptr<void>& attachment() override { return attachment_; }

  mutable Team team_handle;  // without ownership: the team owns the channel

 private:
  TeamState& team_;
  StreamRef stream_;
  ChannelOptions options_;
  ChannelPod pod_{};
  std::map<uint32_t, uint32_t> owned_;  // first -> count
  std::shared_ptr<void> attachment_;
};

}  // namespace overlace
