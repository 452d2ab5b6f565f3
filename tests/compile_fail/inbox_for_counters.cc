// wanted: invalid initialization of reference|cannot convert|no matching function
// Handles of one kind are not taken for those of another, although all are plain data.
#include "overlace/signal.h"

void f(overlace::Channel& channel, const overlace::Inbox& inbox, const overlace::Counters& counters) {
#ifdef FIXED
  (void)inbox;
  counter_add(channel.pod(), counters.pod(), 0);
#else
  (void)counters;
  counter_add(channel.pod(), inbox.pod(), 0);
#endif
}
