// A convolution whose rows are dealt to the ranks, forward and backward, beside the same on one rank.
#pragma once

#include <cmath>
#include <memory>

#include "convolution.h"
#include "halo.h"
#include "spans.h"

/// hidden: borders leave first, the interior is computed while they travel, the edges come last. waits: the twin that
/// has the borders before it computes. alone: the computation without them, whose results are wrong.
enum class Order { hidden, waits, alone };

class Case {
 public:
  Case(const Convolution& c, int rank, int size, Spans& spans)
      : c_(c), rank_(static_cast<size_t>(rank)), spans_(spans) {
    for (int r = 0; r < size; ++r) {
      in_.push_back(part_of(c.rows, r, size));
      out_.push_back(c.results(in_.back()));
      needs_.push_back(c.needs(out_.back()));
      needs_back_.push_back(c.needs_back(in_.back()));
    }
    x_ = std::make_unique<Rows>(around(in_[rank_], needs_[rank_]), c.floats());
    dy_ = std::make_unique<Rows>(around(out_[rank_], needs_back_[rank_]), c.floats());
    y_ = std::make_unique<Rows>(out_[rank_], c.floats());
    dx_ = std::make_unique<Rows>(in_[rank_], c.floats());
    x_->fill(in_[rank_], 31);
    dy_->fill(out_[rank_], 13);
  }

  size_t longest_border() const { return Halo::longest(in_, needs_, c_.floats()); }

  void open(overlace::Runtime& runtime, overlace::Channel& channel) {
    forward_ = std::make_unique<Halo>(runtime, channel, "result", c_.floats(), in_, needs_);
    backward_ = std::make_unique<Halo>(runtime, channel, "gradient", c_.floats(), out_, needs_back_);
  }

  void forward(Order order) {
    const Part mine = out_[rank_];
    pass(
        *forward_, *x_, mine, inside_of(mine, in_[rank_], [&](Part p) { return c_.needs(p); }), order,
        [&](Part part) { c_.forward(*x_, *y_, part); }, [] {});
  }

  /// In forward passes, since the last call.
  double take_waited_s() { return forward_->take_waited_s(); }

  /// Needs forward before it, for the borders of the input. The weights' gradient needs no border of the result's.
  void backward(Order order) {
    gradient_.assign(c_.weights(), 0);
    const Part mine = in_[rank_];
    pass(
        *backward_, *dy_, mine, inside_of(mine, out_[rank_], [&](Part p) { return c_.needs_back(p); }), order,
        [&](Part part) { c_.back_input(*dy_, *dx_, part); },
        [&] { c_.back_weights(*x_, *dy_, out_[rank_], gradient_); });
  }

  /// Values that are not those of one rank: of the result and the input's gradient each bit, of the sum of all ranks'
  /// gradients of the weights 1e-5 of the largest.
  int wrong(overlace::Bootstrap& bootstrap) const {
    Rows x({0, c_.rows}, c_.floats()), dx = x, y({0, c_.out_rows()}, c_.floats()), dy = y;
    x.fill(x.part(), 31);
    dy.fill(dy.part(), 13);
    c_.forward(x, y, y.part());
    c_.back_input(dy, dx, dx.part());
    std::vector<double> whole(c_.weights(), 0), sum = whole;
    c_.back_weights(x, dy, y.part(), whole);
    for (const overlace::Bytes& theirs : bootstrap.allgather(std::as_bytes(std::span(gradient_)), 10'000))
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += reinterpret_cast<const double*>(theirs.data())[i];
    int count = 0;
    for (const auto& [mine, all] : {std::pair{y_.get(), &y}, {dx_.get(), &dx}})
      for (int row = mine->part().begin; row < mine->part().end; ++row)
        for (int i = 0; i < c_.floats(); ++i) count += mine->at(row)[i] != all->at(row)[i];
    double largest = 0;
    for (const double value : whole) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < sum.size(); ++i) count += !(std::abs(sum[i] - whole[i]) <= 1e-5 * largest);
    return count;
  }

 private:
  template <class Compute, class Meanwhile>
  void pass(Halo& halo, Rows& rows, Part mine, Part inside, Order order, Compute compute, Meanwhile meanwhile) {
    const double begin_us = Spans::now_us();
    const auto receive = [&] {
      shown("wait for borders", [&] { halo.receive(rows); });
      spans_.add("borders", "borders of others until used", begin_us, Spans::now_us());
    };
    if (order != Order::alone) halo.send(rows);
    if (order == Order::waits) receive();
    shown("interior", [&] { compute(inside); });
    meanwhile();
    if (order == Order::hidden) receive();
    shown("edges", [&] {
      compute({mine.begin, inside.begin});
      compute({inside.end, mine.end});
    });
    halo.done();
  }
  template <class Work>
  void shown(const char* name, Work work) {
    const double begin_us = Spans::now_us();
    work();
    spans_.add("computation", name, begin_us, Spans::now_us());
  }

  const Convolution c_;
  const size_t rank_;
  Spans& spans_;
  std::vector<Part> in_, out_, needs_, needs_back_;  // by rank
  std::unique_ptr<Rows> x_, y_, dx_, dy_;
  std::vector<double> gradient_;
  std::unique_ptr<Halo> forward_, backward_;
};
