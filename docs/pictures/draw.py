#!/usr/bin/env python3
"""Draws method.svg and architecture.svg, beside this script. Needs nothing but Python."""

import math
import pathlib
import random

BLUE, ORANGE, GREEN, GREY, LIGHT, INK = (
    "#2b6cb0", "#dd6b20", "#2f855a", "#8795a1", "#e2e8f0", "#1a202c")
TINTS = {BLUE: "#ebf4ff", ORANGE: "#fffaf0", GREEN: "#f0fff4", GREY: "#f7fafc"}


class Picture:
    def __init__(self, width, height):
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def add(self, tag, text=None, **attributes):
        spelled = "".join(
            f' {name.replace("_", "-")}="{value:g}"' if isinstance(value, (int, float))
            else f' {name.replace("_", "-")}="{value}"'
            for name, value in attributes.items())
        self.lines.append(
            f"<{tag}{spelled}/>" if text is None else f"<{tag}{spelled}>{text}</{tag}>")

    def text(self, x, y, text, size=13, fill=INK, anchor="start", weight="normal"):
        self.add("text", text, x=x, y=y, font_size=size, fill=fill, text_anchor=anchor,
                 font_weight=weight)

    def dot(self, x, y, r, fill, stroke="none"):
        self.add("circle", cx=round(x, 1), cy=round(y, 1), r=r, fill=fill, stroke=stroke)

    def line(self, x1, y1, x2, y2, stroke=GREY, width=1.0, dash="none", opacity=1.0):
        self.add("line", x1=round(x1, 1), y1=round(y1, 1), x2=round(x2, 1),
                 y2=round(y2, 1), stroke=stroke, stroke_width=width,
                 stroke_dasharray=dash, opacity=opacity)

    def box(self, x, y, width, height, fill, stroke=GREY, radius=6, dash="none"):
        self.add("rect", x=round(x, 1), y=round(y, 1), width=width,
                 height=round(height, 1), rx=radius, fill=fill, stroke=stroke,
                 stroke_dasharray=dash)

    def arrow(self, x1, y1, x2, y2, stroke=GREY):
        self.line(x1, y1, x2, y2, stroke, 1.4)
        angle = math.atan2(y2 - y1, x2 - x1)
        for turn in (2.6, -2.6):
            self.line(x2, y2, x2 + 8 * math.cos(angle + turn),
                      y2 + 8 * math.sin(angle + turn), stroke, 1.4)

    def save(self, name):
        path = pathlib.Path(__file__).parent / name
        path.write_text("\n".join(self.lines + ["</svg>", ""]))


def draw_queries(picture):
    """Clusters of queries, their centroids, and one block of similar queries."""
    draw = random.Random(3)
    picture.text(20, 28, "1. Cluster the queries", 15, weight="bold")
    picture.text(20, 46, "in the metric of the keys", 12, GREY)
    for color, cx, cy in ((BLUE, 90, 120), (GREEN, 195, 190), (GREY, 80, 255)):
        picture.add("ellipse", cx=cx, cy=cy, rx=62, ry=48, fill=TINTS[color],
                    stroke=color)
        for _ in range(22):
            angle, radius = draw.uniform(0, 2 * math.pi), math.sqrt(draw.random())
            picture.dot(cx + 54 * radius * math.cos(angle),
                        cy + 40 * radius * math.sin(angle), 3, color)
        picture.text(cx, cy + 6, "✕", 18, INK, "middle", "bold")
    picture.box(104, 100, 38, 34, "none", ORANGE, 5)
    picture.dot(122, 117, 4.5, ORANGE)
    picture.text(150, 98, "block", 12, ORANGE)
    picture.text(128, 112, "qᵢ", 13, ORANGE, weight="bold")
    picture.text(20, 330, "✕ centroid: mean of a cluster", 12)
    picture.text(20, 348, "block: similar queries of a cluster", 12, ORANGE)


def draw_keys(picture):
    """The centroid attends to all keys, which lie in key clusters."""
    picture.text(300, 28, "2. Centroids attend to all keys", 15, weight="bold")
    picture.text(300, 46, "one pass, one sum per key cluster", 12, GREY)
    picture.text(318, 190, "✕", 20, INK, "middle", "bold")
    exact = {(0, 1), (1, 0), (1, 3), (3, 2)}
    for cluster in range(4):
        top = 66 + 62 * cluster
        picture.box(440, top, 92, 52, TINTS[GREY])
        for key in range(5):
            x, y = 456 + 15 * key, top + 18 + 14 * (key % 2)
            picture.line(326, 184, x, y, BLUE, 0.8, opacity=0.35)
            picture.dot(x, y, 5, ORANGE if (cluster, key) in exact else LIGHT, GREY)
        picture.text(540, top + 31, f"cluster {cluster + 1}", 12, GREY)
    picture.text(300, 330, "Each block chooses its own exact keys", 12, ORANGE)
    picture.text(300, 348, "from the best keys of its cluster.", 12, ORANGE)


def draw_row(picture):
    """The weights of one query."""
    picture.text(630, 28, "3. The weights of query i", 15, weight="bold")
    picture.text(630, 46, "one softmax over three kinds of keys", 12, GREY)
    base = 285
    centroid = [28, 120, 22, 40, 30, 96, 34, 26, 108, 38, 18, 30, 26, 44, 88, 20]
    factors = [1.5, 1.5, 1.5, 1.5, .6, .6, .6, .6, 1.2, 1.2, 1.2, 1.2, .8, .8, .8, .8]
    exact = {1: 190, 5: 40, 8: 150, 14: 74}
    near = {6: 96, 7: 78}
    for key, (height, factor) in enumerate(zip(centroid, factors)):
        x = 632 + 17 * key
        if key in exact:
            picture.box(x, base - exact[key], 13, exact[key], ORANGE, ORANGE, 1)
        elif key in near:
            picture.box(x, base - near[key], 13, near[key], GREEN, GREEN, 1)
        else:
            picture.box(x, base - height, 13, height, LIGHT, "none", 1)
            picture.box(x, base - factor * height, 13, factor * height, "none", BLUE, 1,
                        "3,2")
    picture.line(626, base, 906, base, INK)
    for cluster in range(4):
        picture.line(630 + 68 * cluster, base + 5, 692 + 68 * cluster, base + 5, GREY, 3)
    picture.text(766, base + 22, "keys, by key cluster", 12, GREY, "middle")
    for x, fill, stroke, dash, text in (
            (630, ORANGE, ORANGE, "none", "exact keys of the block"),
            (790, GREEN, GREEN, "none", "near keys: exact"),
            (630, LIGHT, "none", "none", "the centroid's weight"),
            (790, "none", BLUE, "3,2", "corrected for query i")):
        y = 320 if fill in (ORANGE, GREEN) else 338
        picture.box(x, y, 11, 11, fill, stroke, 1, dash)
        picture.text(x + 17, y + 10, text, 12)


def draw_method():
    picture = Picture(930, 368)
    draw_queries(picture)
    draw_keys(picture)
    draw_row(picture)
    picture.arrow(262, 184, 298, 184)
    picture.arrow(600, 184, 624, 184)
    picture.save("method.svg")


def draw_library(picture, x, y, width, name, rooms, needs, color):
    picture.box(x, y, width, 74, TINTS[color], color)
    picture.text(x + 12, y + 22, name, 15, color, weight="bold")
    picture.text(x + 12, y + 43, rooms, 12)
    picture.text(x + 12, y + 62, needs, 11, GREY)


def draw_architecture():
    """Libraries from bottom to top; an arrow points from a user to what it uses."""
    picture = Picture(930, 440)
    draw_library(picture, 30, 350, 870, "libshoal  (shoal.h)",
                 "src/base ← src/kernels ← src/cluster ← src/attention",
                 "needs libc, libm", BLUE)
    draw_library(picture, 30, 246, 560, "libshoal-models  (shoal_models.h)",
                 "models/kernels ← models/nn ← models/files ← models/text",
                 "needs jansson, utf8proc", GREEN)
    draw_library(picture, 30, 142, 470, "libshoal-speech  (shoal_speech.h)",
                 "speech/audio ← speech/whisper;  audio, words ← recogniser",
                 "needs libsndfile, soxr, zlib, kissfft", GREEN)
    draw_library(picture, 620, 246, 280, "libshoal-mpi  (shoal_mpi.h)", "mpi",
                 "needs an MPI", GREY)
    picture.box(530, 142, 370, 74, TINTS[GREEN], GREEN)
    picture.text(542, 164, "libshoal-train  (shoal_train.h)", 15, GREEN, weight="bold")
    picture.text(542, 185, "train ← train/tasks", 12)
    picture.text(542, 204, "uses models and speech", 11, GREY)
    for x, width, title, text in (
            (30, 270, "cli, lab", "the program shoal"),
            (320, 230, "python", "numpy, PyTorch, transformers"),
            (570, 150, "examples, tests", "public headers"),
            (740, 160, "exact", "every formula once")):
        picture.box(x, 46, width, 58, TINTS[ORANGE], ORANGE)
        picture.text(x + 12, 69, title, 14, ORANGE, weight="bold")
        picture.text(x + 12, 90, text, 12)
    picture.text(30, 26, "Users of the public headers", 13, GREY)
    for x, y1, y2 in ((165, 104, 142), (435, 104, 142), (645, 104, 142), (820, 104, 142),
                      (165, 216, 246), (560, 216, 246), (165, 320, 350),
                      (760, 320, 350)):
        picture.arrow(x, y1, x, y2 - 2)
    picture.arrow(530, 179, 502, 179)
    picture.save("architecture.svg")


draw_method()
draw_architecture()
