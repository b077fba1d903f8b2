#include "table.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

void table_add(text_table *table, const char *format, ...) {
    int at = 0;
    while (at < TABLE_COLUMNS && table->text[table->rows - 1][at][0])
        at++;
    va_list arguments;
    if (at == TABLE_COLUMNS)
        return;
    va_start(arguments, format);
    vsnprintf(table->text[table->rows - 1][at], TABLE_TEXT, format, arguments);
    va_end(arguments);
    if (!table->text[table->rows - 1][at][0])
        strcpy(table->text[table->rows - 1][at], " ");
    table->columns = at >= table->columns ? at + 1 : table->columns;
}

void table_row(text_table *table, const char *first) {
    if (table->rows == TABLE_ROWS)
        return;
    memset(table->text[table->rows++], 0, sizeof table->text[0]);
    table_add(table, "%s", first);
}

void table_number(text_table *table, double value) {
    if (isfinite(value))
        table_add(table, "%.2f", value);
    else
        table_add(table, "-");
}

void table_print(const text_table *table, bool markdown, FILE *file) {
    size_t widths[TABLE_COLUMNS] = {0};
    if (markdown) {
        for (int i = 0; i < table->rows; i++) {
            for (int k = 0; k < table->columns; k++)
                fprintf(file, "| %s ", table->text[i][k]);
            fprintf(file, "|\n");
            for (int k = 0; i == 0 && k < table->columns; k++)
                fprintf(file, "|---%s", k + 1 == table->columns ? "|\n" : "");
        }
        return;
    }
    for (int i = 0; i < table->rows; i++)
        for (int k = 0; k < table->columns; k++) {
            const size_t length = strlen(table->text[i][k]);
            widths[k] = length > widths[k] ? length : widths[k];
        }
    for (int i = 0; i < table->rows; i++)
        for (int k = 0; k < table->columns; k++)
            fprintf(file, k == 0 ? "%-*s%s" : "  %*s%s", (int)widths[k],
                    table->text[i][k], k + 1 == table->columns ? "\n" : "");
}
