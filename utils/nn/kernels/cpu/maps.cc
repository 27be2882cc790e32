// Kernels of a training step on a CPU that read and write every number once: batch norm, layer norm,
// ReLU, SiLU, GELU, biases, sums, max pool, the temporal shift. All arrays are float32.
//
// A function has the signature of MindSpore's `ops.Custom` of type `aot`: p are the pointers to the
// inputs and then the outputs, `count` their number, s their shapes, n their numbers of axes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define KERNEL(name) \
  extern "C" int name(int count, void** p, int* n, int64_t** s, const char**, void*, void*)

namespace {
float* f(void* p) { return static_cast<float*>(p); }

int64_t size(const int64_t* shape, int axes, int first = 0) {
  int64_t product = 1;
  for (int i = first; i < axes; ++i) product *= shape[i];
  return product;
}

// Limits x. The compiler makes vectors of this, but not of std::fmin and std::fmax.
inline float clamp(float x, float low, float high) {
  x = x > low ? x : low;
  return x < high ? x : high;
}

// exp for |x| < 87, relative error 2e-7; written so that the compiler makes vectors of it.
inline float fast_exp(float x) {
  x = clamp(x, -87.0f, 87.0f);
  float whole = std::nearbyint(x * 1.44269504f);
  float r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  int32_t bits = (static_cast<int32_t>(whole) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return y * power;
}

// erf, absolute error 3e-7: a rational function of x up to 4.
inline float fast_erf(float x) {
  x = clamp(x, -4.0f, 4.0f);
  float z = x * x;
  float a = -2.72614225801306e-10f;
  a = a * z + 2.77068142495902e-08f;
  a = a * z - 2.10102402082508e-06f;
  a = a * z - 5.69250639462346e-05f;
  a = a * z - 7.34990630326855e-04f;
  a = a * z - 2.95459980854025e-03f;
  a = a * z - 1.60960333262415e-02f;
  float b = -1.45660718464996e-05f;
  b = b * z - 2.13374055278905e-04f;
  b = b * z - 1.68282697438203e-03f;
  b = b * z - 7.37332916720468e-03f;
  b = b * z - 1.42647390514189e-02f;
  return x * a / b;
}

// 0 below -87, where fast_exp stops growing: times a large x the rest would not be 0.
inline float sigmoid(float x) { return x > -87.0f ? 1.0f / (1.0f + fast_exp(-x)) : 0.0f; }

// Calls function(part, begin, end) for parts of a fixed size, so that results do not depend on the
// number of threads.
constexpr int64_t kPart = 1 << 14;

template <class F>
void split(int64_t count, F function) {
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < count; begin += kPart)
    function(begin / kPart, begin, begin + kPart < count ? begin + kPart : count);
}

// The parts have copies of `function`: without them the compiler makes no vectors.
template <class F>
double sum_each(int64_t count, F function) {
  std::vector<float> sums((count + kPart - 1) / kPart);
  split(count, [&](int64_t part, int64_t begin, int64_t end) {
    const F own = function;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) sum += own(i);
    sums[part] = sum;
  });
  double total = 0;
  for (float sum : sums) total += sum;
  return total;
}

template <class F>
int map_each(int64_t count, F function) {
  split(count, [&](int64_t, int64_t begin, int64_t end) {
    const F own = function;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) own(i);
  });
  return 0;
}
}  // namespace

// x -> y
KERNEL(relu) {
  const float* x = f(p[0]);
  float* y = f(p[1]);
  return map_each(size(s[0], n[0]), [=](int64_t i) { y[i] = x[i] > 0 ? x[i] : 0; });
}

// dy, y -> dx
KERNEL(relu_grad) {
  const float *dy = f(p[0]), *y = f(p[1]);
  float* dx = f(p[2]);
  return map_each(size(s[0], n[0]), [=](int64_t i) { dx[i] = y[i] > 0 ? dy[i] : 0; });
}

// x -> y
KERNEL(silu) {
  const float* x = f(p[0]);
  float* y = f(p[1]);
  return map_each(size(s[0], n[0]), [=](int64_t i) { y[i] = x[i] * sigmoid(x[i]); });
}

// dy, x -> dx
KERNEL(silu_grad) {
  const float *dy = f(p[0]), *x = f(p[1]);
  float* dx = f(p[2]);
  return map_each(size(s[0], n[0]), [=](int64_t i) {
    float gate = sigmoid(x[i]);
    dx[i] = dy[i] * gate * (1.0f + x[i] * (1.0f - gate));
  });
}

// x -> y
KERNEL(gelu) {
  const float* x = f(p[0]);
  float* y = f(p[1]);
  return map_each(size(s[0], n[0]), [=](int64_t i) {
    y[i] = 0.5f * x[i] * (1.0f + fast_erf(x[i] * 0.70710678f));
  });
}

// dy, x -> dx
KERNEL(gelu_grad) {
  const float *dy = f(p[0]), *x = f(p[1]);
  float* dx = f(p[2]);
  return map_each(size(s[0], n[0]), [=](int64_t i) {
    float density = 0.39894228f * fast_exp(-0.5f * x[i] * x[i]);
    dx[i] = dy[i] * (0.5f * (1.0f + fast_erf(x[i] * 0.70710678f)) + x[i] * density);
  });
}

// Any number of arrays -> the sum of all elements
KERNEL(total) {
  double sum = 0;
  for (int i = 0; i < count - 1; ++i) {
    const float* x = f(p[i]);
    sum += sum_each(size(s[i], n[i]), [=](int64_t k) { return x[k]; });
  }
  f(p[count - 1])[0] = sum;
  return 0;
}

// Any number of arrays -> the sum of the squares of all elements
KERNEL(sum_of_squares) {
  double sum = 0;
  for (int i = 0; i < count - 1; ++i) {
    const float* x = f(p[i]);
    sum += sum_each(size(s[i], n[i]), [=](int64_t k) { return x[k] * x[k]; });
  }
  f(p[count - 1])[0] = sum;
  return 0;
}

namespace {
// y = x * factor + shift, with `shortcut` plus that array; with `relu` at least 0.
template <bool relu, bool has_shortcut>
int normalize(const float* x, const float* gamma, const float* beta, const float* old_mean,
              const float* old_var, const float* shortcut, float** outputs, int axes,
              const int64_t* shape) {
  float *y = outputs[0], *mean = outputs[1], *inverse = outputs[2];
  float *new_mean = outputs[3], *new_var = outputs[4];
  int64_t images = shape[0], channels = shape[1], area = size(shape, axes, 2);
  int64_t count = images * area;
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < channels; ++c) {
    double total = 0, squares = 0;
    for (int64_t i = 0; i < images; ++i) {
      const float* row = x + (i * channels + c) * area;
      float part = 0;
#pragma omp simd reduction(+ : part)
      for (int64_t k = 0; k < area; ++k) part += row[k];
      total += part;
    }
    float m = total / count;
    for (int64_t i = 0; i < images; ++i) {
      const float* row = x + (i * channels + c) * area;
      float part = 0;
#pragma omp simd reduction(+ : part)
      for (int64_t k = 0; k < area; ++k) part += (row[k] - m) * (row[k] - m);
      squares += part;
    }
    float scale = 1.0 / std::sqrt(squares / count + 1e-5);
    mean[c] = m;
    inverse[c] = scale;
    new_mean[c] = 0.9f * old_mean[c] + 0.1f * m;
    new_var[c] = 0.9f * old_var[c] + 0.1f * (count > 1 ? squares / (count - 1) : 0.0);
    float factor = gamma[c] * scale, shift = beta[c] - m * factor;
    for (int64_t i = 0; i < images; ++i) {
      const int64_t start = (i * channels + c) * area;
      const float *row = x + start, *other = shortcut + (has_shortcut ? start : 0);
      float* out = y + start;
#pragma omp simd
      for (int64_t k = 0; k < area; ++k) {
        float value = row[k] * factor + shift;
        if (has_shortcut) value += other[k];
        out[k] = relu && !(value > 0) ? 0 : value;
      }
    }
  }
  return 0;
}

// The gradient of `normalize`. `y` is read, and `dshortcut` written, only with a shortcut.
template <bool relu, bool has_shortcut>
int normalize_grad(const float* dy, const float* x, const float* y, const float* gamma,
                   const float* beta, const float* mean, const float* inverse, float** outputs,
                   int axes, const int64_t* shape) {
  float *dx = outputs[0], *dgamma = outputs[1], *dbeta = outputs[2], *dshortcut = outputs[3];
  int64_t images = shape[0], channels = shape[1], area = size(shape, axes, 2);
  int64_t count = images * area;
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < channels; ++c) {
    double total = 0, products = 0;
    float m = mean[c], scale = inverse[c], factor = gamma[c] * scale;
    float shift = relu && !has_shortcut ? beta[c] - m * factor : 0;
    for (int64_t i = 0; i < images; ++i) {
      const int64_t start = (i * channels + c) * area;
      const float *slope = dy + start, *row = x + start, *out = y + (has_shortcut ? start : 0);
      float* own = dshortcut + (has_shortcut ? start : 0);
      float part = 0, product = 0;
#pragma omp simd reduction(+ : part, product)
      for (int64_t k = 0; k < area; ++k) {
        float value = slope[k];
        if (relu) value = (has_shortcut ? out[k] : row[k] * factor + shift) > 0 ? value : 0;
        if (has_shortcut) own[k] = value;
        part += value;
        product += value * (row[k] - m);
      }
      total += part;
      products += product;
    }
    dbeta[c] = total;
    dgamma[c] = products * scale;
    float slope_mean = total / count, part_of_x = products * scale * scale / count;
    for (int64_t i = 0; i < images; ++i) {
      const int64_t start = (i * channels + c) * area;
      const float *slope = has_shortcut ? dshortcut + start : dy + start, *row = x + start;
      float* out = dx + start;
#pragma omp simd
      for (int64_t k = 0; k < area; ++k) {
        float value = slope[k];
        if (relu && !has_shortcut) value = row[k] * factor + shift > 0 ? value : 0;
        out[k] = factor * (value - slope_mean - (row[k] - m) * part_of_x);
      }
    }
  }
  return 0;
}
}  // namespace

// x (N, C, ...), gamma, beta, moving mean, moving variance
//   -> y, mean, 1 / deviation, new moving mean, new moving variance
KERNEL(batch_norm) {
  float* outputs[] = {f(p[5]), f(p[6]), f(p[7]), f(p[8]), f(p[9])};
  return normalize<false, false>(f(p[0]), f(p[1]), f(p[2]), f(p[3]), f(p[4]), nullptr, outputs,
                                 n[0], s[0]);
}

// The same, then ReLU.
KERNEL(batch_norm_relu) {
  float* outputs[] = {f(p[5]), f(p[6]), f(p[7]), f(p[8]), f(p[9])};
  return normalize<true, false>(f(p[0]), f(p[1]), f(p[2]), f(p[3]), f(p[4]), nullptr, outputs,
                                n[0], s[0]);
}

// The same, with a sixth input of the shape of x that is added before ReLU.
KERNEL(batch_norm_add_relu) {
  float* outputs[] = {f(p[6]), f(p[7]), f(p[8]), f(p[9]), f(p[10])};
  return normalize<true, true>(f(p[0]), f(p[1]), f(p[2]), f(p[3]), f(p[4]), f(p[5]), outputs, n[0],
                               s[0]);
}

// dy, x, gamma, mean, 1 / deviation -> dx, dgamma, dbeta
KERNEL(batch_norm_grad) {
  float* outputs[] = {f(p[5]), f(p[6]), f(p[7]), nullptr};
  return normalize_grad<false, false>(f(p[0]), f(p[1]), nullptr, f(p[2]), nullptr, f(p[3]),
                                      f(p[4]), outputs, n[0], s[0]);
}

// dy, x, gamma, beta, mean, 1 / deviation -> dx, dgamma, dbeta
KERNEL(batch_norm_relu_grad) {
  float* outputs[] = {f(p[6]), f(p[7]), f(p[8]), nullptr};
  return normalize_grad<true, false>(f(p[0]), f(p[1]), nullptr, f(p[2]), f(p[3]), f(p[4]),
                                     f(p[5]), outputs, n[0], s[0]);
}

// dy, x, y, gamma, mean, 1 / deviation -> dx, dgamma, dbeta, gradient of the sixth input
KERNEL(batch_norm_add_relu_grad) {
  float* outputs[] = {f(p[6]), f(p[7]), f(p[8]), f(p[9])};
  return normalize_grad<true, true>(f(p[0]), f(p[1]), f(p[2]), f(p[3]), nullptr, f(p[4]), f(p[5]),
                                    outputs, n[0], s[0]);
}

// x (..., C), gamma, beta, epsilon (1) -> y, mean, 1 / deviation
KERNEL(layer_norm) {
  const float *x = f(p[0]), *gamma = f(p[1]), *beta = f(p[2]);
  float epsilon = f(p[3])[0], *y = f(p[4]), *mean = f(p[5]), *inverse = f(p[6]);
  int64_t width = s[1][0], rows = size(s[0], n[0]) / width;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = x + i * width;
    float total = 0, squares = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t k = 0; k < width; ++k) total += row[k];
    float m = total / width;
#pragma omp simd reduction(+ : squares)
    for (int64_t k = 0; k < width; ++k) squares += (row[k] - m) * (row[k] - m);
    float scale = 1.0f / std::sqrt(squares / width + epsilon);
    mean[i] = m;
    inverse[i] = scale;
#pragma omp simd
    for (int64_t k = 0; k < width; ++k)
      y[i * width + k] = (row[k] - m) * scale * gamma[k] + beta[k];
  }
  return 0;
}

// dy, x, gamma, mean, 1 / deviation -> dx, dgamma, dbeta
KERNEL(layer_norm_grad) {
  const float *dy = f(p[0]), *x = f(p[1]), *gamma = f(p[2]), *mean = f(p[3]), *inverse = f(p[4]);
  float *dx = f(p[5]), *dgamma = f(p[6]), *dbeta = f(p[7]);
  const int64_t width = s[2][0], rows = size(s[0], n[0]) / width, parts = 64;
  std::vector<float> sums(parts * 2 * width);  // of each part of the rows, whatever the threads are
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < parts; ++part) {
    float *own_gamma = sums.data() + part * 2 * width, *own_beta = own_gamma + width;
    for (int64_t i = part * rows / parts; i < (part + 1) * rows / parts; ++i) {
      const float *slope = dy + i * width, *row = x + i * width;
      float m = mean[i], scale = inverse[i], total = 0, products = 0;
#pragma omp simd reduction(+ : total, products)
      for (int64_t k = 0; k < width; ++k) {
        float normed = (row[k] - m) * scale, weighted = slope[k] * gamma[k];
        own_gamma[k] += slope[k] * normed;
        own_beta[k] += slope[k];
        total += weighted;
        products += weighted * normed;
      }
      total /= width;
      products /= width;
#pragma omp simd
      for (int64_t k = 0; k < width; ++k)
        dx[i * width + k] =
            scale * (slope[k] * gamma[k] - total - (row[k] - m) * scale * products);
    }
  }
  for (int64_t k = 0; k < width; ++k) {
    double of_gamma = 0, of_beta = 0;
    for (int64_t part = 0; part < parts; ++part) {
      of_gamma += sums[part * 2 * width + k];
      of_beta += sums[part * 2 * width + width + k];
    }
    dgamma[k] = of_gamma;
    dbeta[k] = of_beta;
  }
  return 0;
}

// x (..., C), b (C) -> y
KERNEL(add_bias) {
  const float *x = f(p[0]), *b = f(p[1]);
  float* y = f(p[2]);
  const int64_t width = s[1][0], rows = size(s[0], n[0]) / width;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < rows; ++i) {
#pragma omp simd
    for (int64_t k = 0; k < width; ++k) y[i * width + k] = x[i * width + k] + b[k];
  }
  return 0;
}

// dy (..., C), b (C) -> db
KERNEL(add_bias_grad) {
  const float* dy = f(p[0]);
  float* db = f(p[2]);
  const int64_t width = s[1][0], rows = size(s[0], n[0]) / width, parts = 64;
  std::vector<float> sums(parts * width);
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < parts; ++part) {
    float* own = sums.data() + part * width;
    for (int64_t i = part * rows / parts; i < (part + 1) * rows / parts; ++i) {
#pragma omp simd
      for (int64_t k = 0; k < width; ++k) own[k] += dy[i * width + k];
    }
  }
  for (int64_t k = 0; k < width; ++k) {
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += sums[part * width + k];
    db[k] = sum;
  }
  return 0;
}

// x (N, C, ...), b (C) -> y
KERNEL(add_channel_bias) {
  const float *x = f(p[0]), *b = f(p[1]);
  float* y = f(p[2]);
  const int64_t channels = s[1][0], area = size(s[0], n[0], 2), maps = s[0][0] * channels;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < maps; ++i) {
    const float bias = b[i % channels];
#pragma omp simd
    for (int64_t k = 0; k < area; ++k) y[i * area + k] = x[i * area + k] + bias;
  }
  return 0;
}

// dy (N, C, ...), b (C) -> db
KERNEL(add_channel_bias_grad) {
  const float* dy = f(p[0]);
  float* db = f(p[2]);
  const int64_t channels = s[1][0], area = size(s[0], n[0], 2), images = s[0][0];
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0;
    for (int64_t i = 0; i < images; ++i) {
      const float* map = dy + (i * channels + c) * area;
      float part = 0;
#pragma omp simd reduction(+ : part)
      for (int64_t k = 0; k < area; ++k) part += map[k];
      sum += part;
    }
    db[c] = sum;
  }
  return 0;
}

// A row of outputs of a max pool of one map x (height, width) whose windows begin at the row `top`:
// `largest`, and `from`, the indices of the first maxima. `settings`: kernel, stride, padding.
void pool_row(const float* x, int64_t height, int64_t width, int64_t top, const int32_t* settings,
              int64_t outputs, float* largest, int32_t* from) {
  const int64_t kernel = settings[0], stride = settings[1], padding = settings[2];
  const int64_t first_row = std::max<int64_t>(top, 0), rows = std::min(top + kernel, height);
  for (int64_t i = 0; i < outputs; ++i) {
    largest[i] = -INFINITY;
    from[i] = first_row * width + std::max<int64_t>(i * stride - padding, 0);
  }
  for (int64_t row = first_row; row < rows; ++row)
    for (int64_t k = -padding; k < kernel - padding; ++k) {
      const int64_t first = k < 0 ? (stride - 1 - k) / stride : 0, start = row * width + k;
      const int64_t end = std::min(outputs, (width - k + stride - 1) / stride);
#pragma omp simd
      for (int64_t i = first; i < end; ++i) {
        const float value = x[start + i * stride];
        const bool is_larger = value > largest[i] || value != value;  // a NaN is the maximum
        largest[i] = is_larger ? value : largest[i];
        from[i] = is_larger ? static_cast<int32_t>(start + i * stride) : from[i];
      }
    }
}

// x (N, C, H, W), settings -> y
KERNEL(max_pool) {
  const float* x = f(p[0]);
  const int32_t* settings = static_cast<int32_t*>(p[1]);
  float* y = f(p[2]);
  const int64_t maps = s[0][0] * s[0][1], area = size(s[0], n[0], 2), rows = s[2][2], width = s[2][3];
#pragma omp parallel for schedule(static)
  for (int64_t map = 0; map < maps; ++map) {
    std::vector<int32_t> from(width);
    for (int64_t row = 0; row < rows; ++row)
      pool_row(x + map * area, s[0][2], s[0][3], row * settings[1] - settings[2], settings, width,
               y + (map * rows + row) * width, from.data());
  }
  return 0;
}

// dy, x, settings -> dx: a slope goes to the first maximum of its window
KERNEL(max_pool_grad) {
  const float *dy = f(p[0]), *x = f(p[1]);
  const int32_t* settings = static_cast<int32_t*>(p[2]);
  float* dx = f(p[3]);
  const int64_t maps = s[1][0] * s[1][1], area = size(s[1], n[1], 2), rows = s[0][2], width = s[0][3];
#pragma omp parallel for schedule(static)
  for (int64_t map = 0; map < maps; ++map) {
    std::vector<float> largest(width);
    std::vector<int32_t> from(width);
    std::memset(dx + map * area, 0, 4 * area);
    for (int64_t row = 0; row < rows; ++row) {
      pool_row(x + map * area, s[1][2], s[1][3], row * settings[1] - settings[2], settings, width,
               largest.data(), from.data());
      const float* slope = dy + (map * rows + row) * width;
      for (int64_t i = 0; i < width; ++i) dx[map * area + from[i]] += slope[i];
    }
  }
  return 0;
}

// x (N*T, C, ...), (T, fold, step), not used -> y: the first `fold` channels of frame i are those of frame
// i + step, the next `fold` those of frame i - step; zero outside of the clip.
KERNEL(shift) {
  const float* x = f(p[0]);
  const int32_t* settings = static_cast<int32_t*>(p[1]);
  float* y = f(p[3]);
  int64_t frames = s[0][0], channels = s[0][1], area = size(s[0], n[0], 2);
  int64_t length = settings[0], fold = settings[1] * area, step = settings[2];
  int64_t frame = channels * area;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < frames; ++i) {
    const float* in = x + i * frame;
    float* out = y + i * frame;
    for (int64_t part = 0; part < 2; ++part) {
      int64_t by = part ? -step : step, source = i % length + by;
      if (source < 0 || source >= length)
        std::memset(out + part * fold, 0, 4 * fold);
      else
        std::memcpy(out + part * fold, in + by * frame + part * fold, 4 * fold);
    }
    std::memcpy(out + 2 * fold, in + 2 * fold, 4 * (frame - 2 * fold));
  }
  return 0;
}
