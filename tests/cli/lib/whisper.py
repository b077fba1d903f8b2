# A small Whisper model with random weights, and recordings for it.
import math, random, struct
WIDTH, HEADS, LAYERS, TEXT, MELS = 8, 2, 1, 24, 80

# model NAME [VOCABULARY]: ggml, halves
def model(name, vocabulary="51865"):
    vocabulary, draw = int(vocabulary), random.Random(3)
    out = open(name, "wb")
    ints = lambda *v: out.write(struct.pack("<%di" % len(v), *v))
    def tensor(key, shape, spread, centre=0.0, half=True):
        ints(len(shape), len(key), int(half), *reversed(shape))
        out.write(key.encode())
        count = math.prod(shape)
        few = [draw.gauss(centre, spread) for _ in range(min(count, 5003))]
        values = (few * (count // len(few) + 1))[:count]
        out.write(struct.pack("<%d%s" % (count, "e" if half else "f"), *values))
    def vector(key, size, centre=0.0):
        tensor(key, [size], 0.1, centre, False)
    def linear(key, inputs, outputs, bias=True):
        tensor(key + ".weight", [outputs, inputs], inputs ** -0.5)
        if bias:
            vector(key + ".bias", outputs)
    def norm(key):
        vector(key + ".weight", WIDTH, 1.0)
        vector(key + ".bias", WIDTH)
    def attention(key):
        for part in ("query", "key", "value", "out"):
            linear("%s.%s" % (key, part), WIDTH, WIDTH, part != "key")
    ints(0x67676d6c, vocabulary, 1500, WIDTH, HEADS, LAYERS, TEXT, WIDTH, HEADS, LAYERS,
         MELS, 1, MELS, 201)
    out.write(struct.pack("<%df" % (MELS * 201),
                          *[0.01 if abs(b - 2 * m) < 3 else 0.0
                            for m in range(MELS) for b in range(201)]))
    words = 50256 + (vocabulary > 51864)
    ints(words)
    for i in range(words):
        text = bytes([i]) if i < 256 else b" w%d" % i
        ints(len(text))
        out.write(text)
    for key, inputs in (("conv1", MELS), ("conv2", WIDTH)):
        tensor("encoder.%s.weight" % key, [WIDTH, inputs, 3], 0.1)
        tensor("encoder.%s.bias" % key, [WIDTH, 1], 0.1, 0.0, False)
    tensor("encoder.positional_embedding", [1500, WIDTH], 0.3, 0.0, False)
    tensor("decoder.positional_embedding", [TEXT, WIDTH], 0.3, 0.0, False)
    tensor("decoder.token_embedding.weight", [vocabulary, WIDTH], 0.5)
    for side in ("encoder", "decoder"):
        for i in range(LAYERS):
            block = "%s.blocks.%d." % (side, i)
            norm(block + "attn_ln")
            attention(block + "attn")
            if side == "decoder":
                norm(block + "cross_attn_ln")
                attention(block + "cross_attn")
            norm(block + "mlp_ln")
            linear(block + "mlp.0", WIDTH, 4 * WIDTH)
            linear(block + "mlp.2", 4 * WIDTH, WIDTH)
    norm("encoder.ln_post")
    norm("decoder.ln")
    out.close()

# wav NAME SECONDS [CHANNELS RATE]: 16-bit, a voice whose pitch and formant glide, four
# syllables a second
def wav(name, seconds, channels="1", rate="16000"):
    channels, rate = int(channels), int(rate)
    count = int(float(seconds) * rate)
    draw = random.Random(name)
    def tone(i):
        at, inside = i / rate, i / rate % 0.25
        pitch, formant = 120 + 60 * inside, 500 + 1800 * inside
        phase = 2 * math.pi * (120 * at + 30 * inside * inside)
        return 3000 * max(0, math.sin(math.pi * inside / 0.2)) * sum(
            math.sin(h * phase) / (1 + ((h * pitch - formant) / 300) ** 2)
            for h in range(1, 9))
    values = [int(tone(i) + draw.gauss(0, 20))
              for i in range(count) for _ in range(max(channels, 1))]
    body = struct.pack("<%dh" % len(values), *values)
    raw_wav(name, 1, channels, rate, 16, body)

def raw_wav(name, form, channels, rate, bits, body):
    block = channels * bits // 8
    head = struct.pack("<HHIIHH", form, channels, rate, rate * block, block, bits)
    with open(name, "wb") as out:
        out.write(b"RIFF" + struct.pack("<I", 36 + len(body)) + b"WAVEfmt " +
                  struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(body)))
        out.write(body)
