/* Tables of short texts: aligned for a terminal, or Markdown. */
#ifndef SHOAL_LAB_TABLE_H
#define SHOAL_LAB_TABLE_H

#include <stdbool.h>
#include <stdio.h>

enum { TABLE_ROWS = 128, TABLE_COLUMNS = 36, TABLE_TEXT = 72 };

typedef struct {
    int rows, columns; /* the first row is the heading */
    char text[TABLE_ROWS][TABLE_COLUMNS][TABLE_TEXT];
} text_table;

/* Begins a row, or adds to the last one; text beyond the capacity is dropped. */
void table_row(text_table *table, const char *first);
void table_add(text_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "%.2f", or "-" if it is not finite. */
void table_number(text_table *table, double value);
void table_print(const text_table *table, bool markdown, FILE *file);

#endif
