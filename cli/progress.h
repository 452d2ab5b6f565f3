// A bar on stderr while a run lasts; nothing where stderr is no terminal.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace overlace::cli {

/// "[##########..........]  50 %  timing qkv", at most `width` characters.
std::string progress_line(double share, std::string_view what, int width);

/// Steps of a run have weights; each moves the bar by its part. Removes its line when it goes.
class Progress {
 public:
  /// Draws to `out` only if `enabled`.
  Progress(std::FILE* out, bool enabled, double total_weight) : out_(out), enabled_(enabled), total_(total_weight) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }
  /// Begins a step; the one before counts as done.
  void begin(std::string what, double weight);
  /// Part of the present step that is done, 0 to 1.
  void update(double share);
  void clear();

 private:
  void draw(double share);
  std::FILE* out_;
  bool enabled_;
  double total_;
  double done_ = 0, weight_ = 0;
  std::string what_, shown_;
};

/// Whether a bar belongs there: a terminal, and not asked to be quiet.
bool shows_progress(int fd, bool quiet);

}  // namespace overlace::cli
