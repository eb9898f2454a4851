// Convolution through oneDNN, over two or three axes (one is two of which the first has one place). Our arrays are
// plain (n, channels, sizes...); oneDNN chooses its own blocked layouts
// (`any`), and what differs is reordered on the way: measured two to four times faster than its plain code, reorders
// included.
#include "convolution/geometry.h"

#include <paceline/cores.h>
#include <paceline/detail/at_exit.h>
#include <paceline/detail/onednn.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>

namespace paceline {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

constexpr auto kFloat = memory::data_type::f32;

using detail::cpu_engine;

// A thread's memory for arrays in oneDNN's layouts: one for all its convolutions, of which one runs at a time.
class Scratch {
 public:
  static constexpr std::size_t kAlignment = 64;

  std::byte* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes)));
      if (!memory_) throw OutOfMemory(str("the host has no ", bytes, " bytes left"));
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> memory_{nullptr, &std::free};
  std::size_t bytes_ = 0;
};

// One array of a primitive: our plain memory, and oneDNN's where its layout differs.
class Argument {
 public:
  Argument(const memory::desc& plain, const memory::desc& chosen)
      : plain_(plain, cpu_engine(), DNNL_MEMORY_NONE), reordered_(plain != chosen) {
    if (!reordered_) return;
    chosen_ = memory(chosen, cpu_engine(), DNNL_MEMORY_NONE);
    to_chosen_ = dnnl::reorder(plain_, chosen_);
    to_plain_ = dnnl::reorder(chosen_, plain_);
  }

  std::size_t scratch_bytes() const {
    if (!reordered_) return 0;
    return (chosen_.get_desc().get_size() + Scratch::kAlignment - 1) / Scratch::kAlignment * Scratch::kAlignment;
  }
  // Takes what it needs; returns what follows. Setting an address clears padding, so only where it is another.
  std::byte* place(std::byte* scratch) {
    if (reordered_ && chosen_.get_data_handle() != scratch) chosen_.set_data_handle(scratch);
    return scratch + scratch_bytes();
  }

  const memory& read(dnnl::stream& stream, const void* data) {
    plain_.set_data_handle(const_cast<void*>(data));
    if (reordered_) to_chosen_.execute(stream, plain_, chosen_);
    return memory_to_use();
  }
  const memory& written(void* data) {
    plain_.set_data_handle(data);
    return memory_to_use();
  }
  void finish(dnnl::stream& stream) {
    if (reordered_) to_plain_.execute(stream, chosen_, plain_);
  }

 private:
  const memory& memory_to_use() const { return reordered_ ? chosen_ : plain_; }

  memory plain_, chosen_;
  bool reordered_;
  dnnl::reorder to_chosen_, to_plain_;
};

struct Descriptors {
  memory::desc x, weight, bias, y;
};

// What oneDNN calls plain and channels-last for this number of axes.
struct Tags {
  Tag plain, channels_last, weight, grouped_weight;
};

int axes_of(const ConvolutionGeometry& g) { return std::max(2, g.axes); }

Tags tags_of(const ConvolutionGeometry& g) {
  if (axes_of(g) == 2) return {Tag::nchw, Tag::nhwc, Tag::oihw, Tag::goihw};
  return {Tag::ncdhw, Tag::ndhwc, Tag::oidhw, Tag::goidhw};
}

// `first`, then the numbers of the axes.
memory::dims dims(const ConvolutionGeometry& g, memory::dims first, const ConvolutionGeometry::Sizes& sizes) {
  first.insert(first.end(), sizes.end() - axes_of(g), sizes.end());
  return first;
}

// x and y in `layout`; the weights are plain where that is plain, else oneDNN chooses.
Descriptors describe(const ConvolutionGeometry& g, Tag layout) {
  const bool grouped = g.groups > 1;
  const memory::dims channels =
      grouped ? memory::dims{g.groups, g.group_out(), g.group_in()} : memory::dims{g.out, g.in};
  const Tag plain_weight = grouped ? tags_of(g).grouped_weight : tags_of(g).weight;
  return {{dims(g, {g.examples, g.in}, g.size), kFloat, layout},
          {dims(g, channels, g.kernel), kFloat, layout == tags_of(g).plain ? plain_weight : Tag::any},
          {{g.out}, kFloat, Tag::a},
          {dims(g, {g.examples, g.out}, g.result), kFloat, layout}};
}

// How the kernel moves.
struct Steps {
  memory::dims stride, dilation, padding;

  explicit Steps(const ConvolutionGeometry& g)
      : stride(dims(g, {}, g.stride)), dilation(dims(g, {}, g.dilation)), padding(dims(g, {}, g.padding)) {
    for (auto& step : dilation) --step;
  }
};

// oneDNN's plain loops are slower than im2col.
template <class Description>
void refuse_plain_loops(const Description& description) {
  if (std::string_view(description.impl_info_str()).starts_with("ref"))
    throw dnnl::error(dnnl_unimplemented, "only a reference implementation");
}

template <class Description>
bool uses_avx512(const Description& description) {
  return std::string_view(description.impl_info_str()).find("avx512") != std::string_view::npos;
}

// oneDNN 3 takes the parts of a description as they are, oneDNN 2 wrapped once more. `hint` is nothing, or the forward
// description of a backward one.
template <class Primitive, class... Hint, class... Parts>
auto description_of(std::tuple<Hint...> hint, const Parts&... parts) {
  using Description = typename Primitive::primitive_desc;
  return std::apply(
      [&](const auto&... hints) {
        if constexpr (requires { typename Primitive::desc; })
          return Description(typename Primitive::desc(parts...), cpu_engine(), hints...);
        else
          return Description(cpu_engine(), parts..., hints...);
      },
      hint);
}

dnnl::convolution_forward::primitive_desc forward_description(const ConvolutionGeometry& g, bool biased) {
  const Descriptors any = describe(g, Tag::any);
  const auto [stride, dilation, padding] = Steps(g);
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  constexpr auto kHow = dnnl::algorithm::convolution_direct;
  using Primitive = dnnl::convolution_forward;
  if (biased)
    return description_of<Primitive>(std::tuple(), kKind, kHow, any.x, any.weight, any.bias, any.y, stride, dilation,
                                     padding, padding);
  return description_of<Primitive>(std::tuple(), kKind, kHow, any.x, any.weight, any.y, stride, dilation, padding,
                                   padding);
}

struct Key {
  ConvolutionPass pass;
  ConvolutionGeometry geometry;
  bool biased;
  int team;  // oneDNN divides the work when the primitive is made
  friend bool operator==(const Key&, const Key&) = default;
};

// One pass over arrays of one shape, ready to run.
class Convolution {
 public:
  explicit Convolution(const Key& key) : pass_(key.pass) {
    const auto& [pass, g, biased, team] = key;
    const Descriptors plain = describe(g, tags_of(g).plain);
    const Descriptors any = describe(g, Tag::any);
    const auto [stride, dilation, padding] = Steps(g);
    constexpr auto kHow = dnnl::algorithm::convolution_direct;
    const auto hint = forward_description(g, biased);
    switch (pass) {
      case ConvolutionPass::kForward: {
        x_.emplace(plain.x, hint.src_desc());
        weight_.emplace(plain.weight, hint.weights_desc());
        y_.emplace(plain.y, hint.dst_desc());
        refuse_plain_loops(hint);
        primitive_ = dnnl::convolution_forward(hint);
        break;
      }
      case ConvolutionPass::kBackwardData: {
        const auto description = description_of<dnnl::convolution_backward_data>(
            std::tuple(hint), kHow, any.x, any.weight, any.y, stride, dilation, padding, padding);
        x_.emplace(plain.x, description.diff_src_desc());
        weight_.emplace(plain.weight, description.weights_desc());
        y_.emplace(plain.y, description.diff_dst_desc());
        refuse_plain_loops(description);
        primitive_ = dnnl::convolution_backward_data(description);
        break;
      }
      case ConvolutionPass::kBackwardWeight: {
        // clang 14 captures no structured bindings, but variables made from them.
        const auto describe_pass = [&, biased = biased, stride = stride, dilation = dilation,
                                    padding = padding](const Descriptors& as) {
          using Primitive = dnnl::convolution_backward_weights;
          if (biased)
            return description_of<Primitive>(std::tuple(hint), kHow, as.x, as.weight, as.bias, as.y, stride, dilation,
                                             padding, padding);
          return description_of<Primitive>(std::tuple(hint), kHow, as.x, as.weight, as.y, stride, dilation, padding,
                                           padding);
        };
        auto description = describe_pass(any);
        // For few channels `any` falls back to AVX2, while channels-last has AVX-512 code: 409 and 171 microseconds for
        // LeNet's second layer at batch 64.
        if (!uses_avx512(description)) {
          const auto channels_last = describe_pass(describe(g, tags_of(g).channels_last));
          if (uses_avx512(channels_last)) description = channels_last;
        }
        x_.emplace(plain.x, description.src_desc());
        weight_.emplace(plain.weight, description.diff_weights_desc());
        y_.emplace(plain.y, description.diff_dst_desc());
        refuse_plain_loops(description);
        primitive_ = dnnl::convolution_backward_weights(description);
        break;
      }
    }
    bias_.emplace(plain.bias, plain.bias);
  }

  void run(dnnl::stream& stream, Scratch& scratch, const ConvolutionArrays& arrays) {
    std::byte* place = scratch.at_least(x_->scratch_bytes() + weight_->scratch_bytes() + y_->scratch_bytes());
    for (std::optional<Argument>* argument : {&x_, &weight_, &y_}) place = (*argument)->place(place);
    std::unordered_map<int, memory> arguments;
    switch (pass_) {
      case ConvolutionPass::kForward:
        arguments = {{DNNL_ARG_SRC, x_->read(stream, arrays.x)},
                     {DNNL_ARG_WEIGHTS, weight_->read(stream, arrays.weight)},
                     {DNNL_ARG_DST, y_->written(arrays.y)}};
        if (arrays.bias) arguments.emplace(DNNL_ARG_BIAS, bias_->read(stream, arrays.bias));
        primitive_.execute(stream, arguments);
        y_->finish(stream);
        break;
      case ConvolutionPass::kBackwardData:
        arguments = {{DNNL_ARG_DIFF_DST, y_->read(stream, arrays.y_gradient)},
                     {DNNL_ARG_WEIGHTS, weight_->read(stream, arrays.weight)},
                     {DNNL_ARG_DIFF_SRC, x_->written(arrays.x_gradient)}};
        primitive_.execute(stream, arguments);
        x_->finish(stream);
        break;
      case ConvolutionPass::kBackwardWeight:
        arguments = {{DNNL_ARG_SRC, x_->read(stream, arrays.x)},
                     {DNNL_ARG_DIFF_DST, y_->read(stream, arrays.y_gradient)},
                     {DNNL_ARG_DIFF_WEIGHTS, weight_->written(arrays.weight_gradient)}};
        if (arrays.bias_gradient) arguments.emplace(DNNL_ARG_DIFF_BIAS, bias_->written(arrays.bias_gradient));
        primitive_.execute(stream, arguments);
        weight_->finish(stream);
        break;
    }
    stream.wait();
  }

 private:
  ConvolutionPass pass_;
  std::optional<Argument> x_, weight_, bias_, y_;
  dnnl::primitive primitive_;
};

double operations(const ConvolutionGeometry& g) {
  return 2.0 * static_cast<double>(g.examples * g.out * g.output_places()) * static_cast<double>(g.patch());
}

}  // namespace

void prepare_onednn_convolution() {
  [[maybe_unused]] static const bool once = [] {
    const ConvolutionGeometry geometry = make_geometry("convolution", {1, 1, 3, 3}, {1, 1, 3, 3}, {});
    for (const ConvolutionPass pass :
         {ConvolutionPass::kForward, ConvolutionPass::kBackwardData, ConvolutionPass::kBackwardWeight})
      Convolution({pass, geometry, true, 1});
    detail::rest_before_exit();
    return true;
  }();
}

bool onednn_convolution(ConvolutionPass pass, const ConvolutionGeometry& geometry, const ConvolutionArrays& arrays) {
  thread_local detail::PrimitiveCache<Key, Convolution> cache;
  thread_local Scratch scratch;
  // The weights' gradient is summed over threads behind spinning barriers, which cost milliseconds when another process
  // has the core: small ones stay on one thread.
  constexpr double kWorthATeam = 6.4e7;
  const TeamScope team(pass == ConvolutionPass::kBackwardWeight && operations(geometry) < kWorthATeam ? 1
                                                                                                      : team_size());
  const bool biased = arrays.bias || arrays.bias_gradient;
  Convolution* const convolution = cache.find("convolution", {pass, geometry, biased, team_size()});
  if (!convolution) return false;
  convolution->run(cache.stream(), scratch, arrays);
  return true;
}

}  // namespace paceline
