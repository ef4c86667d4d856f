package pglock

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// statement is what is sent of an SQL file: without its comments, and with name for what
// the file calls plain.
func statement(file, plain string, name pgx.Identifier) string {
	var lines []string
	for line := range strings.Lines(file) {
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "--") {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), plain, name.Sanitize())
}

// text is an SQL file without its comments.
func text(file string) string { return statement(file, "", nil) }

// array is a text of numbers that Postgres reads as bigint[].
func array(numbers []int64) []byte {
	text := make([]byte, 1, 2+21*len(numbers))
	text[0] = '{'
	for i, n := range numbers {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, n, 10)
	}
	return append(text, '}')
}

// literal quotes a text as an SQL literal, whatever standard_conforming_strings says.
func literal(text string) string {
	text = strings.ReplaceAll(text, "'", "''")
	if strings.Contains(text, `\`) {
		return " E'" + strings.ReplaceAll(text, `\`, `\\`) + "'"
	}
	return "'" + text + "'"
}
