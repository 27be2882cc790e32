// Depthwise 3-D convolutions of (N, C, T, H, W) and their gradients. Kernels of 3 x 3 x 3 or 5 x 1 x 1,
// zero padding (k - 1) / 2, a stride in height and width.
//
// The volume of one channel fits into the cache of a core. It is copied there with its padding; rows
// have zeros up to whole vectors. The signature of functions is explained in maps.cc.
#include <cstdint>
#include <cstring>
#include <vector>

namespace {
#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4)));

inline Vector load(const float* p) { return *reinterpret_cast<const Vector*>(p); }

struct Shape {
  int64_t frames, height, width, stride, out_height, out_width;
  Shape(const int64_t* x, const int64_t* y, const void* stride)
      : frames(x[2]), height(x[3]), width(x[4]), stride(*static_cast<const int32_t*>(stride)),
        out_height(y[3]), out_width(y[4]) {}
  int64_t pitch() const { return (width + kLanes - 1) / kLanes * kLanes + kLanes; }
  int64_t volume() const { return frames * height * width; }
  int64_t out_volume() const { return frames * out_height * out_width; }
};

// A padded copy of one channel; its numbers have `step` zeros - 1 between them in height and width.
template <int KT, int KH, int KW>
struct Padded {
  const Shape& shape;
  int64_t row, frame;
  std::vector<float> data;
  explicit Padded(const Shape& shape)
      : shape(shape), row(shape.pitch()), frame((shape.height + KH - 1) * row),
        data((shape.frames + KT - 1) * frame + kLanes) {}

  float* at(int64_t t, int64_t h) { return data.data() + t * frame + h * row; }

  void fill(const float* source, int64_t height, int64_t width, int64_t step) {
    for (int64_t t = 0; t < shape.frames; ++t)
      for (int64_t h = 0; h < height; ++h) {
        float* target = at(t + KT / 2, h * step + KH / 2) + KW / 2;
        if (step == 1)
          std::memcpy(target, source, 4 * width);
        else
          for (int64_t w = 0; w < width; ++w) target[w * step] = source[w];
        source += width;
      }
  }

  // One row of the convolution with stride 1, in `out`, which has whole vectors.
  void convolve_row(const float* weight, int64_t t, int64_t h, float* out) {
    for (int64_t w = 0; w < shape.width; w += kLanes) {
      Vector sum = {};
      for (int i = 0; i < KT; ++i)
        for (int j = 0; j < KH; ++j) {
          const float* from = at(t + i, h + j) + w;
          for (int k = 0; k < KW; ++k) sum += weight[(i * KH + j) * KW + k] * load(from + k);
        }
      *reinterpret_cast<Vector*>(out + w) = sum;
    }
  }
};

template <int KT, int KH, int KW>
int forward(void** p, int64_t** s) {
  const float *x = static_cast<float*>(p[0]), *weight = static_cast<float*>(p[1]);
  float* y = static_cast<float*>(p[3]);
  const Shape shape(s[0], s[3], p[2]);
  const int64_t channels = s[0][1], maps = s[0][0] * channels;
#pragma omp parallel
  {
    Padded<KT, KH, KW> padded(shape);
    std::vector<float> row(shape.pitch());
#pragma omp for schedule(static)
    for (int64_t i = 0; i < maps; ++i) {
      padded.fill(x + i * shape.volume(), shape.height, shape.width, 1);
      const float* own = weight + i % channels * KT * KH * KW;
      float* out = y + i * shape.out_volume();
      for (int64_t t = 0; t < shape.frames; ++t)
        for (int64_t h = 0; h < shape.out_height; ++h, out += shape.out_width) {
          padded.convolve_row(own, t, h * shape.stride, row.data());
          for (int64_t w = 0; w < shape.out_width; ++w) out[w] = row[w * shape.stride];
        }
    }
  }
  return 0;
}

// Adds the gradient of one channel's kernel: the products of dy with the shifted x.
template <int KT, int KH, int KW>
void add_weight_grad(Padded<KT, KH, KW>& x, Padded<KT, KH, KW>& dy, double* sums) {
  const Shape& shape = x.shape;
  for (int i = 0; i < KT; ++i) {
    Vector total[KH * KW] = {};
    for (int64_t t = 0; t < shape.frames; ++t)
      for (int64_t h = 0; h < shape.height; h += shape.stride)
        for (int64_t w = 0; w < shape.width; w += kLanes) {
          Vector slope = load(dy.at(t + KT / 2, h + KH / 2) + KW / 2 + w);
          for (int j = 0; j < KH; ++j)
            for (int k = 0; k < KW; ++k)
              total[j * KW + k] += slope * load(x.at(t + i, h + j) + w + k);
        }
    for (int j = 0; j < KH * KW; ++j)
      for (int lane = 0; lane < kLanes; ++lane) sums[i * KH * KW + j] += total[j][lane];
  }
}

template <int KT, int KH, int KW>
int gradient(void** p, int64_t** s) {
  const float *dy = static_cast<float*>(p[0]), *x = static_cast<float*>(p[1]);
  const float* weight = static_cast<float*>(p[2]);
  float *dx = static_cast<float*>(p[4]), *dw = static_cast<float*>(p[5]);
  const Shape shape(s[1], s[0], p[3]);
  const int64_t channels = s[1][1], size = KT * KH * KW;
#pragma omp parallel
  {
    Padded<KT, KH, KW> padded(shape), slopes(shape);
    std::vector<float> row(shape.pitch());
#pragma omp for schedule(static)
    for (int64_t c = 0; c < channels; ++c) {
      float flipped[size];
      double sums[size] = {};
      for (int k = 0; k < size; ++k) flipped[k] = weight[c * size + size - 1 - k];
      for (int64_t n = 0; n < s[1][0]; ++n) {
        const int64_t map = n * channels + c;
        padded.fill(x + map * shape.volume(), shape.height, shape.width, 1);
        slopes.fill(dy + map * shape.out_volume(), shape.out_height, shape.out_width, shape.stride);
        add_weight_grad(padded, slopes, sums);
        float* out = dx + map * shape.volume();
        for (int64_t t = 0; t < shape.frames; ++t)
          for (int64_t h = 0; h < shape.height; ++h, out += shape.width) {
            slopes.convolve_row(flipped, t, h, row.data());
            std::memcpy(out, row.data(), 4 * shape.width);
          }
      }
      for (int k = 0; k < size; ++k) dw[c * size + k] = sums[k];
    }
  }
  return 0;
}
}  // namespace

// x, w (C, 1, kt, kh, kw), stride -> y
extern "C" int depthwise(int, void** p, int*, int64_t** s, const char**, void*, void*) {
  return s[1][2] == 5 ? forward<5, 1, 1>(p, s) : forward<3, 3, 3>(p, s);
}

// dy, x, w, stride -> dx, dw
extern "C" int depthwise_grad(int, void** p, int*, int64_t** s, const char**, void*, void*) {
  return s[2][2] == 5 ? gradient<5, 1, 1>(p, s) : gradient<3, 3, 3>(p, s);
}
