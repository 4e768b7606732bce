package pacecar

import (
	"context"
	"errors"
	"time"
)

// The reasons for which a request is refused. Test for them with [errors.Is].
var (
	// ErrWaitTooLong says that the next free slot is further away than the
	// policy's MaxWait.
	ErrWaitTooLong = errors.New("the wait for a slot is too long")

	// ErrUnavailable says that Redis did not answer, and that the policy is
	// [FailClosed] or the request costs more than the share of [FailOpen] ever
	// has.
	ErrUnavailable = errors.New("redis is unavailable")

	// ErrCostTooHigh says that a request costs more slots than one of the rates
	// ever has or, as [Background] work, than the policy's Reserve leaves of it.
	ErrCostTooHigh = errors.New("the cost is above a rate's limit")
)

// An Error is a refusal: the request was not sent, and nothing was charged
// for it; or, when it is a retry that is refused, not sent again. http.Client
// wraps it in a *url.Error; use [errors.As].
type Error struct {
	// Key names the quota. It never holds a secret: see [ByHeader].
	Key string

	// Wait is how long the request would have had to wait from the moment of
	// refusal. Zero means that it is not known.
	Wait time.Duration

	// Paused is how much of Wait is a pause, which the upstream asked for, or an
	// [Admin].
	Paused time.Duration

	// Err is why: [ErrWaitTooLong], [ErrUnavailable] or [ErrCostTooHigh]; the
	// error of the request's context, when that ended or ends before the slot;
	// or that of GetBody, when a retry has no body.
	Err error
}

// Error does not show the request's URL, whose query may hold a secret.
func (e *Error) Error() string {
	s := "pacecar: " + e.Key + ": " + e.Err.Error()
	if e.Wait > 0 {
		s += " (next slot in " + e.Wait.Round(time.Millisecond).String()
		if e.Paused > 0 {
			s += ", of which it is paused for " + e.Paused.Round(time.Millisecond).String()
		}
		s += ")"
	}
	return s
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the request's deadline is what refused it. It
// implements [net.Error], so that url.Error's Timeout tells the same.
func (e *Error) Timeout() bool { return errors.Is(e.Err, context.DeadlineExceeded) }

// Temporary returns false, so that who asks does not try again at once what was
// refused for good reason. It implements [net.Error].
func (e *Error) Temporary() bool { return false }

// passes reports whether time alone lifts the refusal.
func (e *Error) passes() bool {
	return errors.Is(e.Err, ErrWaitTooLong) || errors.Is(e.Err, ErrUnavailable) || e.Timeout()
}

// NonRetriable marks the error for the Azure SDK (azcore's errorinfo), which
// else would try again at once what was refused for good reason.
func (e *Error) NonRetriable() {}

// RetryableError returns false. It is what the AWS SDK asks of an error before
// it tries again.
func (e *Error) RetryableError() bool { return false }
