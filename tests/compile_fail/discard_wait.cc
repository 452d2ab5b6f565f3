// wanted: wait_ge.*nodiscard|ignoring return value.*wait_ge
// A wait that failed must be noticed: nothing may be read then.
#include "overlace/signal.h"

void f(const overlace::ChannelPod& channel) {
#ifdef FIXED
  if (wait_ge(channel, 0, 1, 1) != overlace::Errc::ok) return;
#else
  wait_ge(channel, 0, 1, 1);
#endif
}
