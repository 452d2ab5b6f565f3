// Runtimes that are open in this process: what a fork or the end of the process must do to them.
#pragma once

#include <cstdint>

namespace overlace::runtime {

class Control;

/// Number of forks that this process is the child of, as counted since the first runtime was opened.
uint64_t fork_count();
/// From open to close. At exit without close() the peers are told (peer_lost, left).
void add_life(Control* control);
void remove_life(Control* control);
/// Descriptors that a forked child closes at once: a copy that lives on would hide the end of this process from peers.
void add_descriptor(int fd);
void remove_descriptor(int fd);

}  // namespace overlace::runtime
